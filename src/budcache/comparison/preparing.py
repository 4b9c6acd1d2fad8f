"""Bringing a method to a budget: searching, calibrating and tuning it on the calibration samples."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from budcache.comparison.methods import AUTHORS, OURS, UNTAUGHT
from budcache.comparison.searching import expected_calls, searched
from budcache.errors import BudcacheError, BudcacheWarning, FileError, PolicyError
from budcache.jobs.meter import Meter
from budcache.jobs.setup import Setup
from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy
from budcache.samples.samples import seeded
from budcache.wording import quote

__all__ = ["LEDGER", "Preparation", "Ready", "plain"]

LEDGER = "search.ledger.jsonl"  # of our searches, in the folder of the comparison
TUNING_SAMPLES = 16  # that thresholds are set on
TRIALS = 8  # of a threshold, typically


@dataclass(frozen=True)
class Ready:
    """A method at a budget: `running` puts it on the pipeline and gives a function that tells the last run's mask."""

    running: Callable[[], AbstractContextManager[Callable[[], Mask]]]
    steps: int  # to ask the pipeline for
    knob: str | None = None
    learned_on: int | None = None  # samples that it was searched, fitted or tuned on


@dataclass
class Preparation:
    """Brings methods to budgets. What several of them need (a search, recorded runs) is made once, when first needed.

    Args:
        calibration: samples to search, fit and tune on.
        folder: where searches are kept.
        policies: ladders that are there already, by method.
    """

    pipe: Any
    steps: int
    budgets: Sequence[int]
    calibration: Sequence[Mapping[str, Any]]
    folder: Path
    policies: Mapping[str, Ladder]
    seed: int
    batch: int
    meter: Meter
    _calibrated: dict[str, Any] = field(default_factory=dict)

    def made_of(self, method: str) -> str:
        """A fingerprint of what a method is given beside the comparison's own settings."""
        if method not in self.policies:
            return ""
        return hashlib.sha256(self.policies[method].model_dump_json().encode()).hexdigest()[:16]

    def expected_calls(self, method: str) -> int:
        """About how many sample-calls it will take to bring a method to all budgets."""
        if method in (*self.policies, *UNTAUGHT):
            return 0
        if method in (*OURS, *AUTHORS):
            wan = type(self.pipe).__name__.startswith("Wan")
            groups = [self.budgets] if method in OURS else [[budget] for budget in self.budgets]
            return sum(expected_calls(method, self.steps, those, len(self.calibration), wan) for those in groups)
        return len(self._tuning) * TRIALS * sum(self.budgets)

    def ready(self, method: str, budget: int) -> Ready:
        """Bring a method to a budget."""
        if method in self.policies:
            return self._policy(self.policies[method][budget])
        if method == "fewer-steps":
            return plain(self.pipe, budget)
        if method == "uniform":
            return self._policy(Policy(mask=Mask.uniform(self.steps, budget)))
        if method in OURS:
            return self._policy(self._ladder(method)[budget])
        if method in AUTHORS:
            return self._policy(self._search(method, [budget], f"{method}-{budget}.ledger.jsonl")[budget])
        return self._baseline(method, budget)

    def _ladder(self, method: str) -> Ladder:
        """Ours: from the folder as far as an earlier run got, and searched for the budgets that are missing there."""
        file = self.folder / f"{method}.ladder.json"
        kept = self._kept(file)
        missing = sorted(set(self.budgets) - {rung.budget for rung in kept})
        if missing:
            # Rungs that are there stay: pictures have been drawn by them.
            kept += self._search(method, missing, LEDGER)
            Ladder.of(kept).save(file)
        return Ladder.of(kept)

    def _kept(self, file: Path) -> list[Policy]:
        """The rungs that an earlier run found; a ladder of another search is put aside, for it may be dear."""
        if not file.exists():
            return []
        with _of_the_folder():
            ladder = Ladder.load(file)
        differs = self._difference(ladder)
        if differs is None:
            return list(ladder)
        aside = file.with_suffix(".other.json")
        file.replace(aside)
        warnings.warn(
            f"{file} is no ladder of this comparison's search: {differs}. It is now {aside.name}, and the search is "
            "made again; to compare that ladder, give it as a policy.",
            BudcacheWarning,
            stacklevel=2,
        )
        return []

    def _difference(self, ladder: Ladder) -> str | None:
        """In what a ladder differs from those that are searched here, as a clause; None if in nothing."""
        ours = self._searched_on
        differs = ladder.difference(Ladder.of([Policy(mask=Mask.full(self.steps), origin=ours)]))
        if differs is not None:
            return differs
        for rung in ladder:
            for name in ("prompts_hash", "seed"):
                theirs, here = getattr(rung.origin, name, None), getattr(ours, name)
                if theirs != here:
                    return f"{name} is {quote(theirs)} in one and {quote(here)} in the other"
        return None

    @cached_property
    def _searched_on(self) -> Origin:
        """What ladders that are searched here say of where they came from."""
        return Setup(self.pipe, self.steps).origin(self.calibration, seed=self.seed)

    def _search(self, method: str, budgets: Sequence[int], ledger: str) -> Ladder:
        return searched(
            method,
            self.pipe,
            steps=self.steps,
            budgets=budgets,
            samples=self.calibration,
            ledger=self.folder / ledger,
            seed=self.seed,
            batch=self.batch,
            meter=self.meter,
        )

    def _policy(self, policy: Policy) -> Ready:
        from budcache.pipeline import applied

        @contextmanager
        def running() -> Iterator[Callable[[], Mask]]:
            with applied(self.pipe, policy) as handle:
                before = handle.stats()

                def last() -> Mask:
                    nonlocal before
                    now = handle.stats()
                    calls, reused, before = now.calls - before.calls, now.reused - before.reused, now
                    # A run that starts midway (image-to-image) has the mask's last steps, and computes its first one.
                    mask = Mask((True, *policy.mask.bits[policy.steps - calls - reused + 1 :]))
                    if calls != mask.budget:  # a policy promises its calls: do not draw what breaks that
                        raise BudcacheError(
                            f"a policy of {mask.budget} calls made {calls} of them. Please report this as a bug."
                        )
                    return mask

                yield last

        return Ready(running, policy.steps, learned_on=policy.origin.prompts if policy.origin else None)

    @cached_property
    def _record(self) -> Any:
        from budcache.baselines import record

        self.meter.add(0, note="recording full runs")
        found = record(self.pipe, self.steps, self._tuning, batch=self.batch)
        self.meter.add(self.steps * len(self._tuning))
        return found

    @cached_property
    def _tuning(self) -> list[dict[str, Any]]:
        """The samples that thresholds are tuned on, each with a noise of its own."""
        return [seeded(sample, self.seed + number) for number, sample in enumerate(self.calibration[:TUNING_SAMPLES])]

    def _baseline(self, method: str, budget: int) -> Ready:
        from budcache.baselines import BASELINES, caching, tune

        if method not in self._calibrated:
            self._calibrated[method] = BASELINES[method].calibrated(self._record)
        self.meter.add(0, note=f"tuning to {budget} calls")
        tuned = tune(self.pipe, self._calibrated[method], budget, self._tuning)
        self.meter.skipped(len(self._tuning) * TRIALS * budget)  # how many it really took, nobody counts

        @contextmanager
        def running() -> Iterator[Callable[[], Mask]]:
            with caching(self.pipe, tuned, self.steps) as runs:
                yield lambda: runs.masks[-1]

        knob = f"{tuned.knob.name} {getattr(tuned, tuned.knob.name):.4g}"
        return Ready(running, self.steps, knob, len(self._tuning))


@contextmanager
def _of_the_folder() -> Iterator[None]:
    """A file of the folder that cannot be used ends the comparison: it is no reason to leave a method out."""
    try:
        yield
    except PolicyError as error:
        raise FileError(str(error)) from None


def plain(pipe: Any, steps: int) -> Ready:
    """The pipeline as it is, with so many steps; image-to-image may start midway and make fewer."""

    @contextmanager
    def told() -> Iterator[Callable[[], Mask]]:
        yield lambda: Mask.full(max(1, min(int(pipe.num_timesteps), steps)))

    @contextmanager
    def counted() -> Iterator[Callable[[], Mask]]:
        from budcache.pipeline.steps import followed

        count = _Count()
        with followed(pipe, steps, count):
            yield lambda: Mask.full(count.steps)

    # Most pipelines tell how many steps they ran; modular ones do not.
    return Ready(told if hasattr(type(pipe), "num_timesteps") else counted, steps)


class _Count:
    """Counts the steps of a run: a `pipeline.steps.Listener`."""

    steps = 0

    def run_begins(self, sigmas: Any) -> None:
        self.steps = 0

    def step_begins(self, step: int) -> None:
        pass

    def step_ends(self, step: int, last: bool) -> None:
        self.steps += 1

    def run_ends(self) -> None:
        pass
