"""Another rung, or another policy, between two runs: the handle stays."""

from __future__ import annotations

import threading

import pytest
import torch
from helpers import STEPS, flux, latents
from test_threads import Waiting, encoded, is_sentence
from zoo import entry

import budcache
from budcache import Ladder, PipelineError, Policy, PolicyError
from budcache.pipeline import Stats
from budcache.rows import Row

LADDER = Ladder.of([Policy(mask="100100"), Policy(mask="110100"), Policy(mask="110101")])
ROWS = (Row(outputs=(1.0,), noise=0.0), Row(outputs=(1.2, -0.2), noise=0.01))
OTHERS = {
    "rung": LADDER[2],
    "residual": Policy(mask="101010", reuse="residual"),
    "rows": Policy(mask="100100", rows=ROWS),
    "guided": Policy(mask="100100", rows=ROWS, guided=[Row(outputs=(1.0,), branch=(0.1,), noise=0.0), ROWS[1]]),
    "levels": Policy(mask="110100", sigmas=[1.0, 0.93, 0.81, 0.6, 0.42, 0.2, 0.0]),
    "full": Policy(mask="111111"),
}


def hooks(pipe) -> int:
    return sum(len(module._forward_hooks) for module in pipe.transformer.modules())


def test_every_kind_follows_every_kind_as_if_it_had_been_applied_afresh():
    kind, pipe = flux()
    bare, original, hooked = latents(kind, pipe), pipe.scheduler, hooks(pipe)
    right = {}
    for name, policy in OTHERS.items():
        with budcache.applied(pipe, policy):
            right[name] = latents(kind, pipe)
    handle = budcache.apply(pipe, LADDER, budget=3)
    order = [*OTHERS, "rows", "residual", "guided", "rung", "residual", "levels", "rows"]
    for name in order:
        assert handle.use(OTHERS[name]) == OTHERS[name] == handle.policy
        assert torch.equal(latents(kind, pipe), right[name]), name
    assert handle.is_active and handle.stats().runs == len(order)
    handle.remove()
    assert pipe.scheduler is original and hooks(pipe) == hooked
    assert torch.equal(latents(kind, pipe), bare)


def test_a_budget_names_a_rung_of_what_was_applied(tmp_path):
    kind, pipe = flux()
    with budcache.applied(pipe, LADDER.save(tmp_path / "l.json"), budget=2) as handle:
        latents(kind, pipe)
        handle.use(budget=4)
        latents(kind, pipe)
        with pytest.raises(PolicyError, match="no rung of 5 calls"):
            handle.use(budget=5)
        assert handle.policy.budget == 4
        handle.use(Ladder.of([Policy(mask="111000"), Policy(mask="100000")]), budget=1)
        latents(kind, pipe)
        handle.use(budget=3)  # of the ladder that was given last
        assert str(handle.policy.mask) == "111000"
        with pytest.raises(PolicyError, match="budgets 1, 3"):
            handle.use()
    assert handle.stats().budgets == {2: (1, 2, 4), 4: (1, 4, 2), 1: (1, 1, 5)}
    with pytest.raises(PipelineError, match="no longer on the pipeline"):
        handle.use(budget=3)


def test_one_that_does_not_suit_leaves_the_other_in_place():
    kind = entry("flux-controlnet")
    pipe = kind.build()
    with budcache.applied(pipe, LADDER, budget=3) as handle:
        right = latents(kind, pipe)
        with pytest.raises(PipelineError, match="ControlNet"):
            handle.use(OTHERS["residual"])
        assert handle.policy == LADDER[3]
        assert torch.equal(latents(kind, pipe), right)


def test_in_the_middle_of_a_run_it_is_refused_and_the_run_goes_on():
    kind, pipe = flux()
    said = []

    def change(_, step, t, kwargs):
        with pytest.raises(PipelineError, match="middle of a run") as refused:
            handle.use(budget=2)
        said.append(str(refused.value))
        return {}

    with budcache.applied(pipe, LADDER, budget=3) as handle:
        right = latents(kind, pipe)
        assert torch.equal(latents(kind, pipe, callback_on_step_end=change), right)
        assert len(said) == 3
        assert handle.use(budget=2).budget == 2


@pytest.mark.parametrize("policy", ["rung", "residual"])
def test_after_a_run_that_failed_even_while_its_error_is_being_handled(policy):
    kind, pipe = flux()

    def fail(_, step, t, kwargs):
        raise MemoryError("no room")

    with budcache.applied(pipe, OTHERS[policy]) as handle:
        try:
            latents(kind, pipe, callback_on_step_end=fail)
        except MemoryError as error:  # its traceback keeps the pipeline's loop alive
            handle.use(LADDER, budget=4)
            drawn = latents(kind, pipe)
            assert error.__traceback__ is not None
    with budcache.applied(pipe, LADDER, budget=4):
        assert torch.equal(latents(kind, pipe), drawn)


def test_another_thread_cannot_change_the_run_of_this_one():
    kind, pipe = flux()
    call, outcomes = encoded(kind, pipe), []

    def change() -> None:
        try:
            outcomes.append(handle.use(budget=2))
        except PipelineError as error:
            outcomes.append(error)

    def meanwhile(_, step, t, kwargs):
        other = threading.Thread(target=change)
        other.start()
        other.join(60)
        return {}

    with budcache.applied(pipe, LADDER, budget=3) as handle:
        right = latents(kind, pipe, **call)
        assert torch.equal(latents(kind, pipe, callback_on_step_end=meanwhile, **call), right)
        assert len(outcomes) == 3 and all("middle of a run" in str(outcome) for outcome in outcomes)
        change()
        assert outcomes[-1] == LADDER[2]


@pytest.mark.parametrize("other", ["rung", "rows", "residual", "full"])
def test_who_has_begun_but_is_not_in_its_loop_gets_a_sentence(other):
    kind, pipe = flux()
    call = encoded(kind, pipe)
    pipe = Waiting(**pipe.components)
    pipe.set_progress_bar_config(disable=True)
    first: list[object] = []

    def late() -> None:
        try:
            first.append(latents(kind, pipe, 0, **call))
        except PipelineError as error:
            first.append(error)

    with budcache.applied(pipe, LADDER, budget=3) as handle:
        Waiting.begun, Waiting.go_on = threading.Event(), threading.Event()
        thread = Waiting.who = threading.Thread(target=late)
        thread.start()
        assert Waiting.begun.wait(60)
        handle.use(OTHERS[other])
        Waiting.go_on.set()
        thread.join(60)
        assert is_sentence(first[0]), first
        drawn = latents(kind, pipe, 1, **call)
    with budcache.applied(pipe, OTHERS[other]):
        assert torch.equal(latents(kind, pipe, 1, **call), drawn)


def test_image_to_image_changes_too():
    kind = entry("flux-img2img")
    pipe = kind.build()
    with budcache.applied(pipe, LADDER, budget=3) as handle:
        handle.use(budget=2)
        switched = latents(kind, pipe)
    with budcache.applied(pipe, LADDER, budget=2):
        assert torch.equal(latents(kind, pipe), switched)


def test_steps_may_change_with_the_policy():
    kind, pipe = flux()
    with budcache.applied(pipe, LADDER, budget=3) as handle:
        handle.use(Policy(mask="1010"))
        latents(kind, pipe, num_inference_steps=4)
        assert handle.stats().last_run_calls == 2
        with pytest.raises(PipelineError, match="4 steps are expected"):
            latents(kind, pipe, num_inference_steps=STEPS)


def test_stats_of_several_pipelines_add_up():
    one, other = Stats(), Stats()
    one.count(8, runs=1, calls=8, reused=20)
    other.count(8, runs=2, calls=16, reused=40)
    other.count(4, runs=1, calls=4, reused=24)
    both = sum([one, other], Stats())
    assert (both.runs, both.calls, both.reused) == (4, 28, 84)
    assert both.budgets == {8: (3, 24, 60), 4: (1, 4, 24)} and one.budgets == {8: (1, 8, 20)}


def test_stats_as_prometheus_reads_them():
    stats = Stats()
    assert stats.prometheus().count("# TYPE") == 3 and "{" not in stats.prometheus()
    stats.count(8, runs=2, calls=16, reused=40)
    stats.count(4, runs=1, calls=4, reused=24)
    assert stats.prometheus(model='a "b"\\\n', worker="0").splitlines() == [
        "# HELP budcache_runs_total Runs of the pipeline that have begun.",
        "# TYPE budcache_runs_total counter",
        r'budcache_runs_total{model="a \"b\"\\\n",worker="0",budget="4"} 1',
        r'budcache_runs_total{model="a \"b\"\\\n",worker="0",budget="8"} 2',
        "# HELP budcache_calls_total Model calls; guidance branches and samples of a batch do not count twice.",
        "# TYPE budcache_calls_total counter",
        r'budcache_calls_total{model="a \"b\"\\\n",worker="0",budget="4"} 4',
        r'budcache_calls_total{model="a \"b\"\\\n",worker="0",budget="8"} 16',
        "# HELP budcache_reused_steps_total Steps that were skipped.",
        "# TYPE budcache_reused_steps_total counter",
        r'budcache_reused_steps_total{model="a \"b\"\\\n",worker="0",budget="4"} 24',
        r'budcache_reused_steps_total{model="a \"b\"\\\n",worker="0",budget="8"} 40',
    ]
    for name in ("budget", "two words", "__name"):
        with pytest.raises(PipelineError, match="cannot be a label"):
            stats.prometheus(**{name: "x"})
