"""What a search spends: every model call is counted, no winner is run twice, and decoding costs none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from helpers import flux
from zoo import entry

import budcache
from budcache import SearchError
from budcache.calibration.judge import Judge
from budcache.jobs.setup import Setup

STEPS, TEXTS = 6, ["a cat", "two dogs", "a red apple", "rain"]


@pytest.fixture(scope="module")
def zoo():
    return flux()


@contextmanager
def heard(pipe: object) -> Iterator[list[int]]:
    """How many samples the transformer's first block really gets, call by call; reused residuals skip it."""
    sizes: list[int] = []

    def listen(block: object, args: object, kwargs: dict[str, object]) -> None:
        sizes.append(len(kwargs["hidden_states"]))

    hook = pipe.transformer.transformer_blocks[0].register_forward_pre_hook(listen, with_kwargs=True)
    try:
        yield sizes
    finally:
        hook.remove()


def searched(zoo, **options):
    """A search on the tiny pipeline, and the sample-calls that its network really got."""
    kind, pipe = zoo
    shared = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    given = {"steps": STEPS, "budgets": [2, 3], "prompts": TEXTS, "selection": 1, "call": shared, **options}
    with heard(pipe) as sizes:
        ladder = budcache.search(pipe, **given, progress=False)
    return ladder, sum(sizes)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"refine": "none", "polish": 2},
        {"batch": 2, "selection": 2},
        {"reuse": "residual"},
        {"objective": "pixel", "refine": "none"},
        {"teacher_steps": 9, "refine": "none"},
        {"strategy": "anneal-r1-sa20", "state_memory": 0, "refine": "none"},
    ],
    ids=str,
)
def test_a_search_counts_every_call_that_its_network_gets(zoo, options):
    ladder, calls = searched(zoo, **options)
    assert ladder.searched.calls == calls
    assert all(rung.origin.calls == calls for rung in ladder)
    assert all(rung.quality.psnr is not None for rung in ladder)


@pytest.mark.parametrize("budget", [1, 3])
def test_the_finalists_are_each_run_once_and_decoded_for_nothing(zoo, budget):
    """One mask, so that all can be counted by hand; the first step was computed when the pipeline was opened."""
    on, aside, each = 3, 1, budget - 1
    plain, calls = searched(zoo, budgets=budget, strategy="uniform", refine="none")
    assert calls == (on + aside) * STEPS + on * each + aside * each
    fitted, calls = searched(zoo, budgets=budget, strategy="uniform", refine="fit")
    # With plain and fitted reuse; then three other fits, made on the one part of the samples and tried on the other,
    # where what they agree on so far is shared: a first row of one output is the same in all of them.
    assert (on + aside) * STEPS + on * each * 5 <= calls <= (on + aside) * STEPS + (on + aside) * each * (2 + 3)
    assert fitted[budget].mask == plain[budget].mask


def test_a_judgement_by_pixels_costs_no_more_calls_than_one_by_latents(zoo):
    by_latents, by_pixels = (
        searched(zoo, strategy="uniform", refine="none", objective=objective)[1] for objective in ("latent", "pixel")
    )
    assert by_latents == by_pixels


def weighted(number):
    def loss(student, teacher, run):
        return float((student - teacher).abs().mean()) * number

    return loss


def test_a_ledger_tells_objectives_apart_by_what_they_compute(zoo, tmp_path):
    """The same function made twice goes on; one that closes over another number is refused."""
    options = {"refine": "none", "ledger": tmp_path / "a.jsonl"}
    first, spent = searched(zoo, objective=weighted(1.0), **options)
    again, more = searched(zoo, objective=weighted(1.0), **options)
    assert again.budgets == first.budgets
    assert [rung.mask for rung in again] == [rung.mask for rung in first]
    assert again.searched.earlier == first.searched.calls == spent
    assert again.searched.calls == again.searched.earlier + more
    assert more < spent  # full runs and the choice are made anew, masks are not
    with pytest.raises(SearchError, match=r"with objective = 'loss \w+', this one has 'loss \w+'"):
        searched(zoo, objective=weighted(2.0), **options)


def test_what_a_fit_says_of_its_samples_is_what_a_run_gives():
    """With nothing put aside, rows for two branches are judged by their own fit: it must be what running them gives."""
    kind = entry("sd3")
    pipe, shared = kind.build(), {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    ladder = budcache.search(pipe, steps=8, budgets=[3, 4], prompts=TEXTS, call=shared, progress=False)
    samples = [{"prompt": text, **shared} for text in TEXTS]
    with Setup(pipe, 8).calibration(samples, 0) as again:
        judge = Judge(again)
        for rung in ladder:
            assert rung.guided and rung.quality.used_to_fit
            quality = judge.quality(rung, used_to_choose=True)
            assert rung.quality.psnr == pytest.approx(quality.psnr, abs=1e-3)
            assert rung.quality.calibration_loss == pytest.approx(quality.loss, rel=1e-4)
