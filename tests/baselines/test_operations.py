"""Operations are counted where they happen: a probe is a part of a call, and reuse of outputs is none."""

from __future__ import annotations

import pytest
import torch
from kinds import STEPS, calibrated, known, run

from budcache import Mask, Policy
from budcache.baselines import caching
from budcache.baselines.operations import Operations, counted
from budcache.pipeline import applied
from budcache.pipeline.trunk import blocks_of, transformers


def test_products_and_attentions_are_counted_by_their_sizes():
    with Operations() as seen:
        torch.ones(3, 4) @ torch.ones(4, 5)
    assert seen.total == 2 * 3 * 4 * 5
    query, key = torch.ones(1, 2, 6, 8), torch.ones(1, 2, 7, 8)
    with Operations() as seen:
        torch.nn.functional.scaled_dot_product_attention(query, key, key)
    assert seen.total == 2 * 2 * 6 * 7 * (8 + 8)


def count(pipe, kind, **more):
    with counted(pipe) as seen:
        latents = run(kind, pipe, **more)
    return seen.total, latents


def test_counting_changes_nothing():
    kind, pipe, _ = known("flux")
    assert torch.equal(count(pipe, kind)[1], run(kind, pipe))


def test_a_policy_costs_exactly_its_calls():
    kind, pipe, _ = known("flux")
    full, _ = count(pipe, kind)
    with applied(pipe, Policy(mask=Mask.uniform(STEPS, 3))):
        some, _ = count(pipe, kind)
    assert some / full == pytest.approx(3 / STEPS)


def test_a_probe_is_the_part_of_a_call_that_its_blocks_are():
    kind, pipe, _ = known("flux")
    full, _ = count(pipe, kind)
    method = calibrated("flux", "dicache").tuned(1e4)
    with caching(pipe, method, STEPS) as runs:
        some, _ = count(pipe, kind)
    calls, skipped = runs.calls[0], STEPS - runs.calls[0]
    assert skipped > 0
    blocks = len(blocks_of(transformers(pipe)[0]))
    equivalents = some / (full / STEPS)
    # A probe is one block, and the embedder and the head run at every step; blocks of FLUX are of two sizes.
    assert calls + 0.3 * skipped / blocks < equivalents < calls + skipped * (2 / blocks + 0.3)
    with caching(pipe, calibrated("flux", "magcache").tuned(1e4), STEPS) as runs:
        plain, _ = count(pipe, kind)
    assert runs.calls[0] < plain / (full / STEPS) < equivalents + runs.calls[0] - calls


@pytest.mark.parametrize("method", ["teacache", "dicache"])
def test_operations_grow_by_as_much_with_every_call(method):
    """So that a comparison needs to count those of the fewest and of the most calls only."""
    kind, pipe, _ = known("flux")
    totals = {}
    for threshold in (1e4, 0.3, 0.1, 0.03, 0.0):
        with caching(pipe, calibrated("flux", method).tuned(threshold), STEPS) as runs:
            total, _ = count(pipe, kind)
        totals[runs.calls[0]] = total
    fewest, *between, most = sorted(totals)
    assert between, "without others in between this would tell nothing"
    for calls in between:
        share = (calls - fewest) / (most - fewest)
        assert totals[calls] == pytest.approx((1 - share) * totals[fewest] + share * totals[most], rel=1e-3)
