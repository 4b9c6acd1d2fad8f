"""Weights that look at the sample (F11)."""

from __future__ import annotations

import pytest
import torch
from helpers import latents, rolled
from toys import Toy, velocity
from zoo import entry

import budcache
from budcache import Mask, Policy
from budcache.aggregate import geometric_mean, mean
from budcache.calibration.calibration import Calibration
from budcache.numerics.features import MOST, features_of, sample_weights, standardised
from budcache.refine.fit import FittedScorer, Form
from budcache.rows import Features

MASK = Mask.parse("101001000100")
ROWS = Form(outputs=16, noise=True)
LOOKS = Features(middle=[-1.0, 0.0, 0.5], spread=[0.5, 0.1, 0.2], slopes=[[0.1, 0.0, -0.2], [0.0, 0.3, 0.0]])


def stronger(scale):
    """A flow that turns faster, as guidance makes it."""
    return lambda x, sigma: velocity(x * scale, sigma) / scale**0.5


def mixed(seeds, scales=(0.4, 1.0, 2.0, 3.0)):
    return Calibration([Toy(seed, 12, field=stronger(scales[seed % len(scales)])) for seed in seeds])


def test_features_are_what_they_are_called():
    one, two, three = torch.eye(3)[None, 0] * 2, torch.eye(3)[None, 0], torch.eye(3)[None, 1]
    (found,) = features_of([one, two, three])
    expected = [torch.tensor(0.5).log(), torch.tensor(2.0).log(), 1 / 2**0.5]
    assert torch.allclose(found, torch.tensor(expected))
    assert features_of([one]).tolist() == [[0.0, 0.0, 0.0]]
    assert features_of([one, two])[0, 2] == 0


def test_features_of_nothing_are_finite():
    zero = torch.zeros(2, 4)
    assert features_of([zero, zero, zero]).isfinite().all()


def test_a_sample_far_from_all_counts_no_more_than_the_farthest():
    far = standardised(torch.tensor([[100.0, -100.0, 0.5]]), LOOKS)
    assert far.tolist() == [[MOST, -MOST, 0.0]]


def test_half_precision_is_looked_at_in_float():
    outputs = [torch.randn(2, 50, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    half = [v.to(torch.bfloat16) for v in outputs]
    assert sample_weights([1.0, 0.0], LOOKS, half).dtype == torch.float32
    assert torch.allclose(features_of(half), features_of(outputs), atol=0.02)


def test_what_is_fitted_is_what_is_rolled():
    known = mixed(range(8))
    found = FittedScorer(known, outputs=16, noise=True, features=True).fit(MASK)
    policy = Policy(mask=MASK, rows=found.rows)
    assert known.losses(known.finals(policy)) == pytest.approx(found.losses, rel=1e-9)
    assert found.rows[0].features is None  # one output says nothing yet
    assert all(row.features for row in found.rows[1:])


def test_they_hold_for_settings_that_shared_weights_do_not():
    """Fitted on a mix, measured on other samples of it."""
    known, others = mixed(range(16)), mixed(range(100, 116))
    losses = []
    for features in (False, True):
        # Latents of six numbers say little, so what features change is pulled more than usual.
        found = FittedScorer(known, outputs=16, noise=True, features=features, slopes=1.0).fit(MASK)
        losses.append(geometric_mean(others.losses(others.finals(Policy(mask=MASK, rows=found.rows)))))
    assert losses[1] < 0.8 * losses[0]


def test_a_strong_pull_gives_shared_weights():
    known = mixed(range(8))
    shared = FittedScorer(known, ROWS).fit(MASK)
    pulled = FittedScorer(known, outputs=16, noise=True, features=True, slopes=1e9).fit(MASK)
    assert pulled.losses == pytest.approx(shared.losses, rel=1e-4)
    assert mean(FittedScorer(known, outputs=16, noise=True, features=True).fit(MASK).losses) < mean(shared.losses)


POLICY = Policy(
    mask="110100",
    rows=[
        {"outputs": [1.0]},
        {"outputs": [1.4, -0.4], "features": {**LOOKS.model_dump(), "slopes": [[0.1, 0.2, 0.3]] * 3}},
        {"outputs": [1.3, -0.2], "noise": 0.1, "features": {**LOOKS.model_dump(), "slopes": [[-0.1, 0.2, 0.1]] * 3}},
    ],
)


@pytest.mark.parametrize("name", ["flux", "wan-t2v", "sdxl"])
def test_what_is_searched_is_what_is_served(name):
    kind = entry(name)
    pipe = kind.build()
    by_search = rolled(kind, pipe, POLICY)
    with budcache.applied(pipe, POLICY):
        assert torch.equal(latents(kind, pipe), by_search)


def test_a_sample_does_not_depend_on_its_neighbours():
    """Bit for bit where the model's own outputs do not: rows themselves treat each sample alone."""
    from budcache.numerics.rollout import landed
    from budcache.plan import Plan

    stretch = Plan.of(POLICY, ()).stretches[-1].on([(1.0, -0.1)] * 6)
    draw = torch.Generator().manual_seed(0)
    x, *outputs, start = (torch.randn(5, 4, 3, generator=draw) for _ in range(5))
    together = landed(x, outputs, start, stretch)
    for i in range(5):
        alone = landed(x[i : i + 1], [v[i : i + 1] for v in outputs], start[i : i + 1], stretch)
        assert torch.equal(alone[0], together[i])


def test_a_batch_is_served_as_its_samples_alone():
    kind = entry("flux")
    pipe = kind.build()

    def draw(seed):
        return torch.Generator().manual_seed(seed)

    with budcache.applied(pipe, POLICY):
        call = {"num_inference_steps": 6, "output_type": "latent"}
        kwargs = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
        both = pipe(prompt=["a", "b"], generator=[draw(0), draw(1)], **call, **kwargs)[0]
        alone = [pipe(prompt=text, generator=draw(i), **call, **kwargs)[0] for i, text in enumerate("ab")]
    assert torch.allclose(both, torch.cat(alone), atol=1e-5)


def test_a_search_on_several_settings_says_between_which():
    kind = entry("flux")
    call = {name: value for name, value in kind.kwargs().items() if name not in ("prompt", "guidance_scale")}
    pipe, scales = kind.build(), [1.5, 3.5, 7.0]
    samples = [{"prompt": str(i), "guidance_scale": scales[i % 3]} for i in range(6)]
    (rung,) = budcache.search(pipe, steps=6, budgets=3, samples=samples, call=call, batch=4)
    assert rung.origin.guidance is None and rung.origin.ranges == {"guidance": (1.5, 7.0)}
    assert any(row.features for row in rung.rows)
    with budcache.applied(pipe, rung):
        latents(kind, pipe, guidance_scale=5.0)
        with pytest.warns(budcache.BudcacheWarning, match="fitted at guidance 1.5 to 7, this run has 9"):
            latents(kind, pipe, guidance_scale=9.0)
