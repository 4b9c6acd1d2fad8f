"""The meter: an honest share of the whole job, and an honest time left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budcache.events import Phase, Planned, Progress
from budcache.jobs.meter import Meter


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def metered(*phases, earlier=0):
    """A meter with a plan, its clock, and what it told."""
    clock, told = Clock(), []
    meter = Meter("search", told.append, earlier, clock)
    meter.plan([Phase(name, calls) for name, calls in phases])
    return meter, clock, told


def test_a_job_by_hand():
    meter, clock, told = metered(("full runs", 20), ("searching", 60), ("choosing", 20))
    assert told == [Planned("search", (Phase("full runs", 20), Phase("searching", 60), Phase("choosing", 20)))]
    assert told[0].sample_calls == 100
    meter.phase("full runs")
    assert told[-1] == Progress("search", "full runs", 0, 100, 0)
    clock.now += 5
    meter.spent(10)
    assert told[-1] == Progress("search", "full runs", 10, 100, 10, seconds_left=45.0)
    clock.now += 5
    meter.spent(20, best=0.5, note="a note")
    assert told[-1] == Progress("search", "full runs", 20, 100, 20, 40.0, 0.5, "a note")
    meter.phase("searching")
    assert told[-1] == Progress("search", "searching", 20, 100, 20, 40.0)
    clock.now += 30  # half the phase by masks, which took fewer calls than was thought
    meter.spent(40, part=0.5)
    assert told[-1] == Progress("search", "searching", 50, 100, 40, seconds_left=50.0)
    meter.phase("choosing")
    assert told[-1] == Progress("search", "choosing", 80, 100, 40, seconds_left=20.0)
    meter.spent(60)
    assert told[-1] == Progress("search", "choosing", 100, 100, 60, seconds_left=0.0)


def test_time_is_measured_from_the_plan_on():
    """Loading the model is no part of the job."""
    clock, told = Clock(), []
    meter = Meter("fit", told.append, clock=clock)
    clock.now += 300
    meter.plan([Phase("fitting", 10)])
    meter.phase("fitting")
    clock.now += 2
    meter.spent(4)
    assert told[-1].seconds_left == 3.0


def test_nothing_is_said_of_the_time_before_a_call_was_made():
    meter, clock, told = metered(("full runs", 20), ("searching", 20))
    meter.phase("full runs")
    clock.now += 60
    meter.spent(0)
    assert told[-1].seconds_left is None


def test_a_phase_that_is_left_out_counts_as_done():
    meter, _, told = metered(("full runs", 20), ("searching", 60), ("fitted", 15), ("choosing", 5))
    meter.phase("full runs")
    meter.spent(20)
    meter.phase("choosing")
    assert (told[-1].phase, told[-1].done, told[-1].total) == ("choosing", 95, 100)


def test_a_phase_that_nobody_planned_is_shown_all_the_same():
    meter, _, told = metered(("full runs", 20), ("choosing", 5))
    meter.phase("full runs")
    meter.spent(20)
    meter.phase("waiting")
    meter.spent(23)
    assert (told[-1].phase, told[-1].done, told[-1].total) == ("waiting", 23, 28)
    meter.phase("choosing")
    assert (told[-1].phase, told[-1].done, told[-1].total) == ("choosing", 23, 28)


def test_a_phase_that_takes_more_than_was_planned_moves_the_end():
    meter, clock, told = metered(("searching", 10), ("choosing", 10))
    meter.phase("searching")
    clock.now += 30
    meter.spent(30)
    assert (told[-1].done, told[-1].total, told[-1].seconds_left) == (30, 40, 10.0)
    meter.phase("choosing")
    assert (told[-1].done, told[-1].total) == (30, 40)


def test_a_resumed_job_goes_fast_through_what_is_known_and_does_not_promise_that_for_the_rest():
    """What the ledger knew takes no calls, so it says nothing of how long a call takes."""
    meter, clock, told = metered(("full runs", 20), ("searching", 80), earlier=70)
    meter.phase("full runs")
    clock.now += 10
    meter.spent(20)
    assert (told[-1].sample_calls, told[-1].seconds_left) == (90, 40.0)
    meter.phase("searching")
    for done in range(1, 41):
        meter.spent(20, part=done / 80)
    assert (told[-1].done, told[-1].total, told[-1].sample_calls) == (60, 100, 90)
    assert told[-1].seconds_left == 20.0  # 40 to come, half a second each
    clock.now += 5
    meter.spent(30, part=50 / 80)
    assert (told[-1].done, told[-1].seconds_left) == (70, 15.0)


@st.composite
def jobs(draw):
    """A plan, and what really happens: phases in their order, some of them skipped, and calls that only grow."""
    names = [f"phase {number}" for number in range(draw(st.integers(1, 4)))]
    phases = [(name, draw(st.integers(0, 50))) for name in names]
    happens, spent = [], 0
    for name in names:
        if draw(st.booleans()):
            happens.append(("phase", name, None))
            for _ in range(draw(st.integers(0, 5))):
                spent += draw(st.integers(0, 30))
                happens.append(("spent", spent, draw(st.none() | st.floats(0, 1))))
    return phases, happens, draw(st.integers(0, 100))


@given(jobs(), st.floats(0.01, 10))
def test_it_never_goes_back_and_never_beyond_the_end(job, pace):
    phases, happens, earlier = job
    meter, clock, told = metered(*phases, earlier=earlier)
    for what, value, part in happens:
        clock.now += pace
        if what == "phase":
            meter.phase(value)
        else:
            meter.spent(value, part=part)
        here = told[-1]
        elapsed, spent = clock.now - 1000.0, here.sample_calls - earlier
        assert here.done <= here.total
        expected = elapsed / spent * (here.total - here.done) if spent else None
        assert here.seconds_left == (None if expected is None else pytest.approx(expected))
    progress = told[1:]
    assert [each.done for each in progress] == sorted(each.done for each in progress)
    assert [each.sample_calls for each in progress] == sorted(each.sample_calls for each in progress)
    assert all(each.total >= sum(calls for _, calls in phases) for each in progress)


def test_nobody_need_watch():
    meter = Meter("align")
    meter.plan([Phase("aligning", 3)])
    meter.phase("aligning")
    meter.spent(3)
