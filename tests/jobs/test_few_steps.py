"""Runs of few steps: when every mask is tried, what that costs, and that fits and alignments work and help there."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import budcache
from budcache import Ladder, Record, models
from budcache.events import Planned
from budcache.jobs.config import LISTED, LISTED_CALLS, taken_strategy
from budcache.records import LIKELIEST
from budcache.strategies import Exhaustive, LadderSearch, Limits, Paths

TEXTS = models.prompts("tiny-flux", "calibration")
NAMES = {Exhaustive: "exhaustive", Paths: "paths", LadderSearch: "ladder"}


@pytest.fixture(scope="module")
def pipe():
    found = models.load("tiny-flux")
    found.set_progress_bar_config(disable=True)
    return found


# Which masks are tried


@pytest.mark.parametrize(
    ("steps", "budgets", "reuse", "taken"),
    [
        (4, (2, 3), "output", "exhaustive"),
        (4, (2, 3), "residual", "exhaustive"),
        (8, (3, 4, 5, 6, 7), "output", "exhaustive"),  # 119 masks
        (8, (4,), "residual", "exhaustive"),
        (9, tuple(range(1, 10)), "output", "exhaustive"),
        (10, tuple(range(1, 11)), "output", "exhaustive"),  # 512
        (11, tuple(range(1, 12)), "output", "paths"),  # 1,024
        (28, (3,), "output", "exhaustive"),  # 351
        (28, (4,), "output", "paths"),  # 2,925
        (14, (10,), "output", "paths"),  # 715, but thousands of calls
        (40, (38,), "output", "paths"),
        (28, (4,), "residual", "ladder"),
    ],
)
def test_every_mask_is_tried_where_there_are_few(steps, budgets, reuse, taken):
    assert NAMES[type(taken_strategy(None, reuse, steps, budgets))] == taken
    few = Exhaustive().expected(steps, budgets) <= LISTED and Exhaustive().calls(steps, budgets) <= LISTED_CALLS
    assert few == (taken == "exhaustive")
    assert isinstance(taken_strategy("paths", reuse, steps, budgets), Paths)


@given(st.integers(2, 7).flatmap(lambda k: st.tuples(st.just(k), st.sets(st.integers(1, k), min_size=1))))
def test_the_calls_of_all_masks_are_the_beginnings_that_they_share(case):
    steps, budgets = case[0], tuple(sorted(case[1]))
    masks = [mask for ask in Exhaustive().propose(steps, budgets, Random(0)) for mask in ask.masks]
    begun = {mask.computed[:count] for mask in masks for count in range(2, mask.budget + 1)}
    assert Exhaustive().calls(steps, budgets) == len(begun)
    assert len(masks) == sum(len(list(combinations(range(1, steps), budget - 1))) for budget in budgets)


@pytest.mark.parametrize(
    ("budgets", "clause"),
    [
        ((3,), "all 3 masks of 3 of 4 calls are tried"),
        ((2, 3), "all 6 masks of 2, 3 of 4 calls are tried"),
        ((1, 2, 3), "all 7 masks of 1 to 3 of 4 calls are tried"),
        ((4,), "the only mask of 4 of 4 calls is tried"),
    ],
)
def test_it_is_said_before_the_search(budgets, clause):
    told = budcache.estimate(steps=4, budgets=budgets, prompts=4)
    assert told.note == clause and str(told).endswith(f"; {clause}")
    assert not budcache.estimate(steps=28, budgets=8, prompts=4).note
    assert budcache.estimate(steps=8, budgets=range(3, 8), prompts=4).note == (
        "all 119 masks of 3 to 7 of 8 calls are tried"
    )
    weighed = budcache.estimate(steps=8, budgets=range(3, 8), prompts=4, strategy="paths").note
    assert weighed == "all 119 masks of 3 to 7 of 8 calls are weighed by the full runs, and the likeliest are tried"


def test_limits_and_records_are_for_paths(pipe):
    """A limit may come before the last mask, and what a record knows are paths."""
    samples = {"prompts": TEXTS[:2], "steps": 4, "budgets": 2, "progress": False}
    assert budcache.search(pipe, **samples).rungs[0].origin.strategy == "exhaustive"
    limited = budcache.search(pipe, limits=Limits(calls=1000), **samples)
    assert limited.rungs[0].origin.strategy == "paths"
    with budcache.recording(pipe) as record:
        pipe(TEXTS[:2], num_inference_steps=4, output_type="latent")
    assert isinstance(record, Record)
    assert budcache.search(pipe, record=record, **samples).rungs[0].origin.strategy == "paths"


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_what_was_begun_under_a_limit_goes_on_as_it_began(pipe, tmp_path, reuse):
    """With and without a limit, and with other budgets: the ledger knows how its search goes."""
    shared = {"prompts": TEXTS[:2], "steps": 6, "reuse": reuse, "refine": "none", "progress": False}
    begun = tmp_path / "limited.ledger.jsonl"
    limited = budcache.search(pipe, budgets=3, limits=Limits(evaluations=8), ledger=begun, **shared)
    whole = budcache.search(pipe, budgets=3, ledger=begun, **shared)
    usual = "paths" if reuse == "output" else "ladder"
    assert {rung.origin.strategy for rung in (*limited, *whole)} == {usual}
    assert whole.searched.earlier > 0
    begun = tmp_path / "free.ledger.jsonl"
    free = budcache.search(pipe, budgets=2, ledger=begun, **shared)
    more = budcache.search(pipe, budgets=3, ledger=begun, limits=Limits(calls=10_000), **shared)
    assert {rung.origin.strategy for rung in (*free, *more)} == {"exhaustive"}


def test_the_command_line_goes_on_as_it_began_too(run_here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = ["search", "tiny-flux", "--steps", 6, "--budgets", 3, "--count", 2, "--refine", "none", "--out", "p.json"]
    code, _, errors = run_here(*usual, "--max-evaluations", 1)
    assert code == 0, errors
    code, _, errors = run_here(*usual, "--force")
    assert code == 0, errors
    assert "going on with" in errors
    assert Ladder.load("p.json").rungs[0].origin.strategy == "paths"


def test_an_objective_of_the_users_own_is_not_outvoted(pipe, monkeypatch):
    from budcache.jobs import searching

    monkeypatch.setattr(searching, "unlikely", None)  # whoever asks it falls over
    shared = {"prompts": TEXTS[:2], "steps": 4, "budgets": 2, "strategy": "exhaustive", "progress": False}
    for more in ({"objective": "pixel"}, {"care": "worst"}):
        assert budcache.search(pipe, **shared, **more).rungs[0].budget == 2
    with pytest.raises(TypeError):
        budcache.search(pipe, **shared)


def test_what_the_full_runs_say_counts_in_the_choice_among_all_masks(pipe, monkeypatch):
    """Where it counts for everything, the likeliest path is chosen, whatever was tried."""
    from budcache.jobs import trying

    samples = {"prompts": TEXTS[:4], "steps": 5, "budgets": (2, 3), "batch": 4, "progress": False}
    assert trying.TRUST > 0
    monkeypatch.setattr(trying, "TRUST", 30)
    everything = budcache.search(pipe, strategy="exhaustive", **samples)
    likeliest = budcache.search(pipe, strategy=Paths(powers=(LIKELIEST,)), **samples)
    assert [rung.mask for rung in everything] == [rung.mask for rung in likeliest]


# What comes of it


@pytest.mark.parametrize(("steps", "budgets"), [(4, (2, 3)), pytest.param(8, (5, 7), marks=pytest.mark.slow)])
def test_all_that_a_policy_can_go_through_works_and_helps(pipe, steps, budgets):
    """Searched plain; fitted; aligned with and without gradients: never worse on the samples put aside."""
    shared = {"prompts": TEXTS[:8], "progress": False}
    seen: list[object] = []
    plain = budcache.search(
        pipe, steps=steps, budgets=budgets, refine="none", strategy="exhaustive", batch=8, watch=seen.append, **shared
    )
    told = next(event for event in seen if isinstance(event, Planned))
    assert told.sample_calls == pytest.approx(plain.searched.calls, rel=0.25)
    fitted = budcache.fit(pipe, plain, batch=8, **shared)
    ways = {"gauss-newton": {"batch": 8}, "gradient": {"every": 4}}
    for method, more in ways.items():
        start = fitted if method == "gauss-newton" else plain
        aligned = budcache.align(pipe, start, method=method, **more, **shared)
        for before, after in zip(start, aligned, strict=True):  # chosen by the loss on the samples put aside
            assert after.quality.loss <= 1.001 * before.quality.loss, (method, after.refined[-1].gain)
    gains = [rung.refined[-1].gain for rung in fitted]
    assert max(gains) > 1 and min(gains) > -0.5, gains
    assert isinstance(fitted, Ladder) and fitted.budgets == budgets
