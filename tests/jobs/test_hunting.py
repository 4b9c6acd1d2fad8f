"""What is left of a search's limits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from budcache.errors import JournalError
from budcache.jobs.config import SearchConfig
from budcache.jobs.hunting import Hunt
from budcache.provenance import Origin
from budcache.strategies import Limits, Uniform


class Scorer:
    """Knows nothing, for so many calls a mask."""

    kind = "plain"

    def __init__(self, spent):
        self.spent = spent

    def score_many(self, masks, one_by_one):
        from budcache.calibration.score import Score

        for _ in masks:
            self.spent.calls += 10
            yield Score((1.0,))


def hunted(limits):
    spent = SimpleNamespace(calls=0)
    config = SearchConfig(steps=8, budgets=(3,), strategy=Uniform(), limits=limits, refine="none")
    hunt = Hunt(config, lambda event: None, calibrations=[spent])
    hunt.meter.plan([])
    hunt.run(Uniform(), Scorer(spent), "searching")
    return hunt, spent


def test_calls_after_the_masks_count():
    hunt, spent = hunted(Limits(calls=30))
    assert not hunt.is_over
    spent.calls += 20
    assert hunt.is_over


def test_the_time_of_the_masks_counts_once():
    hunt, _ = hunted(Limits(seconds=100))
    hunt.limits = hunt.limits.after(60, 1)  # as a search of a minute would leave it
    hunt.begin -= 61
    assert not hunt.is_over
    hunt.begin -= 40
    assert hunt.is_over


class FullDisk:
    """A ledger that can be written no more."""

    spent, closed = 0, False

    def note(self, calls):
        raise JournalError("no room")

    def close(self):
        self.closed = True


@pytest.mark.parametrize("ends", [KeyboardInterrupt, JournalError, None])
def test_what_ended_a_search_is_said_and_not_that_its_cost_could_not_be_noted(ends):
    config, ledger = SearchConfig(steps=8, budgets=(3,), strategy=Uniform(), refine="none"), FullDisk()
    with pytest.raises(ends or JournalError) as caught, Hunt(config, lambda event: None, ledger):
        if ends is not None:
            raise ends("first")
    assert ledger.closed
    assert str(caught.value) == ("no room" if ends is None else "first")


@pytest.mark.parametrize(
    ("name", "usual", "value"),
    [("guidance", None, 4.0), ("guidance", 3.5, 3.5), ("height", None, 480), ("height", 999, 720)],
)
def test_settings_within_a_range(name, usual, value):
    origin = Origin(ranges={"guidance": (1.0, 7.0), "height": (480, 720)})
    assert origin.made_at(name, usual) == value
