"""Hunting for masks: strategies let loose on a scorer, within limits; watched, and written down in a ledger."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from budcache.errors import JournalError
from budcache.events import Scored, Watch
from budcache.jobs.meter import Meter
from budcache.strategies import STRATEGIES, Found, Ledger, Limits, Strategy, drive

if TYPE_CHECKING:
    from types import TracebackType

    from budcache.calibration.asking import Asked
    from budcache.calibration.scoring import Scorer
    from budcache.jobs.config import SearchConfig
    from budcache.jobs.setup import Setup
    from budcache.policy import Origin

__all__ = ["Hunt", "identity", "strategy_name"]


@dataclass
class Hunt:
    """What a search has spent so far, and its strategies at work with what is left."""

    config: SearchConfig
    watch: Watch
    ledger: Ledger | None = None
    calibrations: list[Asked] = field(default_factory=list)  # whose calls count; first the samples searched on

    def __post_init__(self) -> None:
        self.begin, self.limits = time.monotonic(), self.config.limits
        self.earlier = self.ledger.spent if self.ledger else 0  # sample-calls of the processes before this one
        self.meter = Meter("search", self.watch, self.earlier)
        # Sample-calls when the last mask was scored, by whichever process, and those of this process by then.
        self._calls_found = self._calls_then = 0

    def __enter__(self) -> Hunt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ledger is not None:
            try:
                self.ledger.note(self.calls)
            except JournalError:
                if error is None:  # else what ended the search is what is to be said: an error, or Ctrl-C
                    raise
            finally:
                self.ledger.close()

    @property
    def calls(self) -> int:
        """Sample-calls of this process."""
        return sum(calibration.calls for calibration in self.calibrations)

    def spent(self) -> int:
        """Sample-calls of this process and of those before it."""
        return self.calls + self.earlier

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.begin

    @property
    def is_over(self) -> bool:
        """Whether there is no time or no call left to make more of what was found."""
        return bool(self.config.limits.reached(self._calls_found + self.calls - self._calls_then, self.seconds, 0))

    def run(self, strategy: Strategy, scorer: Scorer, phase: str) -> Found:
        """Let a strategy search, with masks scored under one kind of reuse."""
        from budcache.numerics.memory import out_of_memory_as_error

        keep, begin, best = self.ledger, time.monotonic(), dict[int, float]()
        expected = strategy.expected(self.config.steps, self.config.budgets)
        scored = 0

        def named(event: Scored) -> Scored:
            """A mask has another loss under each kind of reuse, so the history tells them apart, as ledgers do."""
            return event if scorer.kind == "plain" else replace(event, phase=f"{event.phase}, {scorer.kind}")

        def told(event: Scored) -> None:
            nonlocal scored
            scored += event.new
            budget = event.mask.budget
            best[budget] = min(event.loss, best.get(budget, event.loss))
            self.meter.tell(named(event))
            part = min(1.0, scored / expected) if expected else None
            self.meter.spent(self.calls, part=part, best=best[budget], note=f"{budget} of {self.config.steps} calls")

        def score(ask: Any) -> Any:
            return scorer.score_many(ask.masks, one_by_one=self.config.limits != Limits())

        self.meter.phase(phase)
        with out_of_memory_as_error():
            found = drive(
                strategy,
                score if keep is None else keep.remembering(score, lambda: self.calls, scorer.kind),
                steps=self.config.steps,
                budgets=self.config.budgets,
                seed=self.config.seed,
                limits=self.limits,
                # What earlier runs of a killed search have spent counts, too; before the first mask, the full runs.
                calls=lambda: self.calls if keep is None else keep.calls or self.calls,
                watch=told,
            )
        found.history = [named(event) for event in found.history]
        self.limits = self.limits.after(time.monotonic() - begin, len(found.scores))
        self._calls_found, self._calls_then = (keep and keep.calls) or self.calls, self.calls
        return found


def identity(setup: Setup, config: SearchConfig, origin: Origin, searched_on: int) -> dict[str, Any]:
    """What the scores in a ledger depend on."""
    from budcache.calibration.objectives import name_of

    of_others = {"prompts", "strategy", "calls", "versions"}
    return origin.model_dump(mode="json", exclude=of_others) | {
        "number format": setup.about.number_format,
        "steps": config.steps,
        "reuse": config.reuse,
        "batch": config.batch,
        "samples searched on": searched_on,
        "strategy": repr(config.first),
        "objective": name_of(config.objective),
        **({"across": True} if setup.across else {}),
        **({"care": config.care} if config.care != "typical" else {}),
    }


def strategy_name(strategy: Strategy) -> str:
    """A strategy's name, or what it says of itself, or at least its class."""
    named = next((name for name, known in STRATEGIES.items() if known == strategy), repr(strategy))
    return type(strategy).__name__ if named.startswith("<") else named
