"""What a job says that it will cost, and what it costs; and what it tells on the way."""

from __future__ import annotations

import io
import logging
import sys
from dataclasses import replace
from functools import cache

import pytest
from helpers import counted
from zoo import entry

import budcache
from budcache import Ladder, Policy, SearchError
from budcache.events import Phase, Planned, Progress, RungDone, RungFound, Scored, Updated
from budcache.jobs.config import SearchConfig
from budcache.jobs.estimate import affordable, search_phases
from budcache.strategies import Limits

FLUX = entry("flux")
SHARED = {name: value for name, value in FLUX.kwargs().items() if name != "prompt"}
TEXTS = [f"{text} {number}" for number in range(2) for text in ("a cat", "two dogs", "red", "the sea")]
LADDER = Ladder.of([Policy(mask=mask) for mask in ("100100", "101010", "110101")])


@cache
def pipeline():
    return FLUX.build()


def search(prompts=4, **options):
    return budcache.search(pipeline(), prompts=TEXTS[:prompts], call=SHARED, **options)


def is_told_well(events, job, earlier=0):
    """Promised of every job: the cost first, then a share that only grows, and that ends at the whole."""
    planned, *rest = events
    assert isinstance(planned, Planned) and planned.job == job
    assert not [event for event in rest if isinstance(event, Planned)]
    progress = [event for event in rest if isinstance(event, Progress)]
    assert {event.job for event in rest} == {job}
    names = [phase.name for phase in planned.phases]
    assert [*dict.fromkeys(event.phase for event in progress)] == names
    for numbers in ([event.done for event in progress], [event.sample_calls for event in progress]):
        assert numbers == sorted(numbers)
    assert all(0 <= event.done <= event.total for event in progress)
    assert progress[-1].done == progress[-1].total
    assert progress[-1].seconds_left == 0
    # The time left is said as soon as something has been measured: behind the first full run.
    for event in progress:
        assert (event.seconds_left is None) == (event.sample_calls == earlier)
    assert next(event for event in progress if event.seconds_left is not None).phase == "full runs"
    return planned, progress


SEARCHES = {
    "fitted": {"steps": 8, "budgets": (2, 3, 4)},
    "fitted, larger": {"steps": 12, "budgets": (3, 5, 7)},
    "fitted, more to choose by": {"steps": 8, "budgets": 4, "selection": 2},
    "fitted, more prompts": {"steps": 8, "budgets": (3, 4), "prompts": 8},
    "fitted, nothing to choose by": {"steps": 8, "budgets": (2, 3), "selection": 0},
    "fitted, finer teacher": {"steps": 8, "budgets": (2, 3), "teacher_steps": 24},
    "plain": {"steps": 8, "budgets": (2, 3, 4), "refine": "none"},
    "plain, larger": {"steps": 12, "budgets": (3, 5, 7), "refine": "none"},
    "plain, nothing to choose by": {"steps": 12, "budgets": 6, "refine": "none", "selection": 0},
    "residual": {"steps": 8, "budgets": (2, 3, 4), "reuse": "residual"},
    "residual, larger": {"steps": 12, "budgets": (3, 5), "reuse": "residual", "selection": 2},
}
EVERY_MASK = {
    "every mask": {"steps": 6, "budgets": (2, 3, 4)},
    "every mask, more prompts": {"steps": 6, "budgets": (3, 4), "prompts": 8},
    "every mask, plain": {"steps": 6, "budgets": (2, 3, 4), "refine": "none"},
    "every mask, residual": {"steps": 6, "budgets": (2, 3, 4), "reuse": "residual"},
}
OTHERS = {
    "annealed": {"steps": 12, "budgets": 4, "strategy": "anneal-r2-sa100", "refine": "none", "prompts": 2},
    "annealed, fitted": {"steps": 8, "budgets": (3, 4), "strategy": "anneal-r1-sa20", "prompts": 2, "selection": 1},
    "authors": {"steps": 12, "budgets": (4, 6), "strategy": "authors-r1-sa20", "refine": "none", "prompts": 1},
    "polished": {"steps": 8, "budgets": (2, 3, 4), "polish": 2, "refine": "none", "strategy": "paths"},
    "uniform": {"steps": 8, "budgets": (3, 4), "strategy": "uniform"},
}


for each in SEARCHES.values():  # where nobody names a strategy, every mask is tried at so few steps
    each["strategy"] = "ladder" if each.get("reuse") == "residual" else "paths"
SEARCHES |= EVERY_MASK


@pytest.mark.parametrize("case", [*SEARCHES, *OTHERS])
def test_a_search_costs_what_it_said_and_says_how_far_it_is(case):
    options = {"prompts": 4, **SEARCHES.get(case, OTHERS.get(case))}
    told = budcache.estimate(**options)
    seen = []
    with counted(FLUX, pipeline()) as heard:
        ladder = search(**options, watch=seen.append)
    planned, progress = is_told_well(seen, "search")
    assert planned == told
    calls = ladder.searched.calls
    assert progress[-1].sample_calls == calls
    assert calls == len(heard) or options.get("reuse") == "residual"  # whose reused steps run embedder and head
    if case in SEARCHES:
        assert told.sample_calls == pytest.approx(calls, rel=0.25)
    else:
        assert calls / 2 <= told.sample_calls <= 2 * calls
    assert tuple(event for event in seen if isinstance(event, Scored)) == ladder.searched.history
    assert [event.policy for event in seen if isinstance(event, RungDone)] == list(ladder)
    found = [seen.index(event) for event in seen if isinstance(event, RungFound)]
    assert {seen[place].policy.budget for place in found} == set(ladder.budgets)
    assert max(found) < min(place for place, event in enumerate(seen) if isinstance(event, RungDone))


@pytest.mark.parametrize("prompts", [8, 16])
def test_the_search_of_the_readme_costs_what_was_measured(prompts):
    """tiny-flux, 28 steps, the ladder: 5,974 sample-calls with 8 prompts, 11,964 with 16."""
    told = budcache.estimate(steps=28, budgets=range(4, 13), prompts=prompts, strategy="ladder")
    assert told.sample_calls == pytest.approx({8: 5974, 16: 11964}[prompts], rel=0.05)


def test_an_estimate_is_the_sum_of_its_phases():
    told = budcache.estimate(steps=8, budgets=4, prompts=4, strategy="ladder")
    assert [phase.name for phase in told.phases] == ["full runs", "searching", "searching, fitted", "choosing"]
    assert told.sample_calls == sum(phase.sample_calls for phase in told.phases)
    assert told.phases[0] == Phase("full runs", 3 * 8)
    assert [phase.name for phase in budcache.estimate(steps=8, budgets=4, prompts=2, refine="none").phases] == [
        "full runs",
        "searching",
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budgets": 9}, "budget of 9 does not fit 8 steps"),
        ({"strategy": "magic"}, "no strategy 'magic'"),
        ({"prompts": 2, "selection": 2}, "leave none to learn from"),
        ({"prompts": 0}, "leave none to learn from"),
        ({"reuse": "residual", "refine": "fit"}, 'only reuse="output" can be fitted'),
    ],
    ids=str,
)
def test_what_cannot_be_searched_has_no_cost(change, says):
    with pytest.raises(SearchError, match=says):
        budcache.estimate(**{"steps": 8, "budgets": 4, "prompts": 4, **change})


@pytest.mark.parametrize("options", [{}, {"outputs": [2], "ridges": [1e-3], "selection": 2}, {"teacher_steps": 12}])
def test_a_fit_costs_what_it_said(options):
    seen = []
    with counted(FLUX, pipeline()) as heard:
        fitted = budcache.fit(pipeline(), LADDER, prompts=TEXTS[:4], call=SHARED, watch=seen.append, **options)
    planned, progress = is_told_well(seen, "fit")
    assert progress[-1].sample_calls == len(heard)
    assert planned.sample_calls == pytest.approx(len(heard), rel=0.25)
    assert [event.policy for event in seen if isinstance(event, RungDone)] == list(fitted)


@pytest.mark.parametrize("options", [{}, {"every": 1, "epochs": 2}, {"teacher_steps": 12, "selection": 2}])
def test_an_alignment_costs_what_it_said(options):
    """And moves evenly: where a rung is done, about its part of the whole is."""
    seen = []
    with counted(FLUX, pipeline()) as heard:
        aligned = budcache.align(pipeline(), LADDER, prompts=TEXTS[:4], call=SHARED, watch=seen.append, **options)
    planned, progress = is_told_well(seen, "align")
    assert progress[-1].sample_calls == len(heard) == sum(rung.refined[0].calls for rung in aligned)
    assert planned.sample_calls == pytest.approx(len(heard), rel=0.25)
    assert [event.policy for event in seen if isinstance(event, RungDone)] == list(aligned)
    first = [event for event in progress if event.note.startswith("2 calls")][-1]
    assert 0.15 < first.done / first.total < 0.5


def test_a_search_that_goes_on_counts_what_was_spent_before(tmp_path):
    options = {"steps": 8, "budgets": (2, 3), "refine": "none", "ledger": tmp_path / "a.jsonl"}
    half = search(**options, limits=Limits(evaluations=9))
    seen = []
    whole = search(**options, watch=seen.append)
    earlier = half.searched.history[-1].sample_calls
    _, progress = is_told_well(seen, "search", earlier)
    assert whole.searched.earlier == progress[0].sample_calls == earlier
    assert progress[-1].sample_calls == whole.searched.calls


def test_an_alignment_that_goes_on_counts_what_was_spent_before(tmp_path):
    options = {"prompts": TEXTS[:4], "call": SHARED, "ledger": tmp_path / "a.jsonl"}

    def stop(event):
        if isinstance(event, Updated) and (event.budget, event.number) == (3, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        budcache.align(pipeline(), LADDER, watch=stop, **options)
    seen = []
    aligned = budcache.align(pipeline(), LADDER, watch=seen.append, **options)
    progress = [event for event in seen if isinstance(event, Progress)]
    earlier = progress[0].sample_calls
    assert earlier > 0
    is_told_well(seen, "align", earlier)
    assert progress[-1].sample_calls == sum(rung.refined[0].calls for rung in aligned)


# Who listens by default

QUICK = {"steps": 6, "budgets": 2, "prompts": 2, "refine": "none", "selection": 1}


def test_with_progress_there_is_a_bar_that_ends_full(capsys):
    search(**QUICK, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "search, full runs" in shown.err and "search, searching" in shown.err and "best loss" in shown.err
    assert "100%" in shown.err.rstrip().split("\r")[-1]
    assert shown.err.endswith("\n")


@pytest.mark.parametrize("progress", [False, None])
def test_where_nobody_looks_nothing_is_shown(progress, capsys):
    search(**QUICK, progress=progress)
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_there_is_a_bar_unless_told_otherwise(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for progress in (None, False):
        monkeypatch.setattr(sys, "stderr", Terminal())
        search(**QUICK, progress=progress)
        assert ("100%" in sys.stderr.getvalue()) == (progress is None)


def test_a_bar_is_closed_when_a_search_fails(capsys):
    with pytest.raises(SearchError, match="before any budget"):
        search(**QUICK, strategy="ladder", progress=True, limits=Limits(evaluations=1))
    shown = capsys.readouterr().err
    assert "search, searching" in shown and shown.endswith("\n")


def test_the_logger_gets_the_cost_every_rung_and_in_detail_every_score(caplog):
    with caplog.at_level(logging.DEBUG, logger="budcache"):
        ladder = search(**QUICK)
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "budcache"]
    told = budcache.estimate(**QUICK)
    first = f"search will take about {told.sample_calls} sample-calls: full runs 6, searching "
    assert lines[0][0] == "INFO" and lines[0][1].startswith(first)
    assert [text for level, text in lines if level == "INFO"][1:] == [f"search: {ladder[2]}"]
    scores = [text for level, text in lines if level == "DEBUG" and text.startswith("exhaustive")]
    assert len(scores) == len(ladder.searched.history)


def test_a_limit_on_calls_pays_for_fewer_prompts_rather_than_for_untried_candidates():
    config = SearchConfig(28, (5, 6, 8, 10))
    cost = [sum(phase.sample_calls for phase in search_phases(config, count)) for count in range(2, 33)]
    assert cost == sorted(cost)
    assert affordable(config, 32) == 32
    for limit, count in ((1, 2), (cost[0], 2), (cost[3] - 1, 4), (cost[3], 5), (10**6, 32)):
        assert affordable(replace(config, limits=Limits(calls=limit)), 32) == count


def test_a_limit_on_calls_is_part_of_what_is_told():
    config = SearchConfig(28, (5, 6, 8, 10), limits=Limits(calls=150))
    assert [phase.sample_calls for phase in search_phases(config, 4)] == [112, 38]
    assert [phase.sample_calls for phase in search_phases(replace(config, limits=Limits(calls=1)), 4)] == [112, 0]


@pytest.mark.parametrize("ledger", [False, True])
def test_full_runs_count_towards_a_limit_before_the_first_candidate(ledger, tmp_path):
    """With nothing left to try candidates, every policy comes from the full runs alone."""
    more = {"ledger": tmp_path / "kept.jsonl"} if ledger else {}
    found = search(prompts=2, steps=8, budgets=(2, 3), limits=Limits(calls=10), **more)
    assert found.searched.history == ()
    assert found.searched.calls == 2 * 8
    assert all(rung.weights and rung.quality.psnr is None for rung in found)
    assert {rung.refined[0].how for rung in found} == {"from full runs"}


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [4, 8])  # all for both, and with some put aside
def test_a_search_with_two_branches_of_guidance_costs_what_it_said(prompts):
    kind = entry("sd3")
    pipe, shared = kind.build(), {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    seen, options = [], {"steps": 12, "budgets": (3, 5, 7), "strategy": "paths"}
    ladder = budcache.search(pipe, prompts=TEXTS[:prompts], call=shared, watch=seen.append, **options)
    assert all(rung.guided for rung in ladder)  # or this would say nothing
    planned, _ = is_told_well(seen, "search")
    assert planned == budcache.estimate(prompts=prompts, guided=True, **options)
    assert planned.sample_calls == pytest.approx(ladder.searched.calls, rel=0.25)
    assert planned.sample_calls > budcache.estimate(prompts=prompts, **options).sample_calls
