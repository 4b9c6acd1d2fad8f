"""Bringing a method to a budget: searching, calibrating and tuning it on the calibration samples."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.comparison.methods import AUTHORS, OURS, SOLVERS, UNTAUGHT
from budcache.comparison.searching import expected_calls, searched
from budcache.comparison.settings import Settings, described
from budcache.errors import BudcacheError, BudcacheWarning, FileError, PolicyError, SearchError
from budcache.jobs.meter import Meter
from budcache.jobs.setup import Elsewhere, Setup
from budcache.mask import Computed, Mask
from budcache.pipeline.experts import switch_of
from budcache.policy import Ladder, Origin, Policy
from budcache.samples.samples import runs_of, seeded
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.workers import Workers
    from budcache.workers.team import Team

__all__ = ["LEDGER", "SETTINGS", "Preparation", "Ready", "plain"]

LEDGER = "search.ledger.jsonl"  # of our searches, in the folder of the comparison
SETTINGS = "settings.json"  # of other people's methods, likewise
RUNS = 150  # of one sample at one budget that choosing a method's settings takes, typically


@dataclass(frozen=True)
class Ready:
    """A method at a budget: `running` puts it on the pipeline, and what it gives tells what the last run computed."""

    running: Callable[[], AbstractContextManager[Callable[[], Computed]]]
    steps: int  # to ask the pipeline for
    knob: str | None = None
    learned_on: int | None = None  # samples that it was searched, fitted or tuned on
    learning_calls: int | None = None  # sample-calls that this took
    expected: float | None = None  # calls on calibration samples, where they may be others on others
    whole: bool = False  # its calls are of the whole network, and between them it takes nothing of it


@dataclass
class Preparation:
    """Brings methods to budgets. What several of them need (a search, recorded runs) is made once, when first needed.

    Args:
        calibration: samples to search, fit and tune on.
        folder: where searches are kept.
        policies: ladders that are there already, by method.
        settings: of other methods that were chosen already.
        workers: who holds the runs of our searches, if not this process: to be started, or at work already.
        kind: the class of the pipeline, where none is at hand to say what all this would cost.

    Whoever has started workers ends them when it is closed.
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
    settings: Settings | None = None
    workers: Workers | Team | None = None
    kind: str = ""
    _tuners: dict[str, Any] = field(default_factory=dict)
    _brought: dict[tuple[str, int], list[Ready]] = field(default_factory=dict)
    _held: ExitStack = field(default_factory=ExitStack)

    def close(self) -> None:
        """End the workers that were started for the searches."""
        self._held.close()

    def made_of(self, method: str, budget: int) -> str:
        """A fingerprint of what a method is given at a budget beside the comparison's own settings."""
        if method in self.policies:
            given = "".join(rung.model_dump_json() for rung in self.policies[method] if rung.budget == budget)
        elif self.settings is not None and method in self.settings:
            given = repr(self.settings.find(method, budget))
        else:
            return ""
        return hashlib.sha256(given.encode()).hexdigest()[:16]

    def is_whole(self, method: str) -> bool:
        """Whether a method's calls are of the whole network, as far as is known before it is ready; see `Ready`."""
        given = self.policies.get(method)
        return method in (*UNTAUGHT, *OURS) if given is None else all(rung.reuse == "output" for rung in given)

    def expected_calls(self, method: str) -> int:
        """About how many sample-calls it will take to bring a method to all budgets."""
        if method in (*self.policies, *UNTAUGHT):
            return 0
        if method in (*OURS, *AUTHORS):
            groups = [self.budgets] if method in OURS else [[budget] for budget in self.budgets]
            return sum(expected_calls(method, self.steps, those, len(self.calibration), self._kind) for those in groups)
        given = self.settings
        missing = [budget for budget in self.budgets if given is None or given.find(method, budget) is None]
        if not missing:
            return 0
        from budcache.baselines import BASELINES

        own = BASELINES[method].calibration_calls(self.steps, len(self.calibration))
        return own + min(RUNS, 5 * len(self.calibration)) * sum(missing)

    def ready(self, method: str, budget: int) -> list[Ready]:
        """Bring a method to a budget, once; who cannot meet it has settings on both sides, the nearest first."""
        if (method, budget) not in self._brought:
            alone = method in self.policies or method in (*UNTAUGHT, *OURS, *AUTHORS)
            found = [self._one(method, budget)] if alone else self._baseline(method, budget)
            self._brought[method, budget] = found
        return self._brought[method, budget]

    def _one(self, method: str, budget: int) -> Ready:
        if method in self.policies:
            return self._policy(self.policies[method][budget])
        if method == "fewer-steps":
            return plain(self.pipe, budget)
        if method in SOLVERS:
            return self._solver(method, budget)
        if method == "uniform":
            return self._policy(Policy(mask=Mask.uniform(self.steps, budget)))
        if method in OURS:
            return self._policy(self._ladder(method)[budget])
        if method in AUTHORS:
            return self._policy(self._search(method, [budget], f"{method}-{budget}.ledger.jsonl")[budget])
        raise AssertionError(method)

    def _solver(self, method: str, budget: int) -> Ready:
        from budcache.baselines.fewer import another_solver, solved_by

        another_solver(self.pipe.scheduler, method)  # or say why not, before anything is drawn
        own = plain(self.pipe, budget)

        @contextmanager
        def running() -> Iterator[Callable[[], Computed]]:
            with solved_by(self.pipe, method), own.running() as last:
                yield last

        return Ready(running, budget, whole=True)

    def _ladder(self, method: str) -> Ladder:
        """Ours: from the folder as far as an earlier run got, and searched for the budgets that are missing there."""
        file = self.folder / f"{method}.ladder.json"
        kept = self._kept(file)
        missing = sorted(set(self.budgets) - {rung.budget for rung in kept})
        if missing:
            # Rungs that are there stay: pictures have been drawn by them.
            kept += self._search(method, missing, LEDGER if method == "budcache" else f"{method}.ledger.jsonl")
            Ladder.of(kept).save(file)
        return Ladder.of(kept)

    def _kept(self, file: Path) -> list[Policy]:
        """The rungs that an earlier run found; a ladder of another search is put aside, for it may have cost much."""
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

    @property
    def _kind(self) -> str:
        return self.kind or type(self.pipe).__name__

    @cached_property
    def _where(self) -> Any:
        """What our searches run on: the pipeline itself, or workers, who load it once for all of them."""
        if self.workers is None:
            return self.pipe
        if isinstance(self.workers, Elsewhere):
            from budcache.workers.team import check_same

            check_same(self.pipe, self.workers)
            return self.workers
        most = runs_of(self.calibration, self.batch)
        return self._held.enter_context(
            self.workers.started(self.pipe, watch=self.meter.tell, job="compare", most=most)
        )

    def _search(self, method: str, budgets: Sequence[int], ledger: str) -> Ladder:
        if method in AUTHORS and switch_of(self.pipe, self.steps) is not None:
            raise SearchError(
                "the pipeline has two experts, and the published search does not know that the second one's first step "
                "must be computed. Leave it out."
            )
        return searched(
            method,
            self._where,
            kind=self._kind,
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
        def running() -> Iterator[Callable[[], Computed]]:
            with applied(self.pipe, policy) as handle:
                before = handle.stats()

                def last() -> Computed:
                    nonlocal before
                    now = handle.stats()
                    calls, reused, before = now.calls - before.calls, now.reused - before.reused, now
                    # A run that starts midway (image-to-image) has the mask's last steps, and computes its first one.
                    mask = Mask((True, *policy.mask.bits[policy.steps - calls - reused + 1 :]))
                    if calls != mask.budget:  # a policy promises its calls: do not draw what breaks that
                        raise BudcacheError(
                            f"a policy of {mask.budget} calls made {calls} of them. Please report this as a bug."
                        )
                    return Computed.of(mask)

                yield last

        origin, whole = policy.origin, policy.reuse == "output"
        if origin is None:
            return Ready(running, policy.steps, whole=whole)
        return Ready(running, policy.steps, learned_on=origin.prompts, learning_calls=origin.calls, whole=whole)

    @cached_property
    def _record(self) -> Any:
        from budcache.baselines import record

        self.meter.add(0, note="recording full runs")
        # One by one: what methods watch differs from sample to sample, and the mean of a batch would hide it.
        found = record(self.pipe, self.steps, self._tuning)
        self.meter.add(self.steps * len(self._tuning))
        return found

    @cached_property
    def _tuning(self) -> list[dict[str, Any]]:
        """The samples that settings are chosen on, as many as ours has, each with a noise of its own."""
        return [seeded(sample, self.seed + number) for number, sample in enumerate(self.calibration)]

    @cached_property
    def _chosen(self) -> Settings:
        """What was chosen in this folder before."""
        file = self.folder / SETTINGS
        if file.exists():
            with _of_the_folder():
                return Settings.load(file)
        facts = self._searched_on.model_dump(mode="json", exclude_none=True)
        return Settings({"steps": self.steps, **facts})

    def _choice(self, method: str, budget: int) -> Any:
        from budcache.baselines import BASELINES
        from budcache.baselines.tally import counting
        from budcache.baselines.tuning import Tuner

        for kept in (self.settings, self._chosen):
            if kept is not None and (found := kept.find(method, budget)) is not None:
                return found
        kind = BASELINES[method]
        self.meter.add(0, note=f"choosing settings for {budget} calls")
        if method not in self._tuners:
            full = self._record
            learn, choose = full.split() if kind.held_out else (full, full)
            with counting(self.pipe) as own:  # LeMiCa has runs of its own
                made = kind.calibrated(learn)
            self.meter.add(own.count // full.branches)
            spent = self.steps * len(self._tuning) + own.count // full.branches
            tuner = Tuner(self.pipe, made, choose.samples, known=choose, batch=self.batch, spent=self.meter.add)
            self._tuners[method] = tuner, spent
        tuner, spent = self._tuners[method]
        found = tuner.choice(budget)
        settings = tuple(
            (each.relearned(self._record) if kind.held_out else each, calls) for each, calls in found.settings
        )
        # Full runs and calibration serve all budgets, and count at each, as our search does.
        found = replace(
            found,
            settings=settings,
            samples=kind.learned_on(len(self._tuning)),
            sample_calls=found.sample_calls + spent,
        )
        self._chosen.keep(method, budget, found)
        self._chosen.save(self.folder / SETTINGS)
        return found

    def _baseline(self, method: str, budget: int) -> list[Ready]:
        choice = self._choice(method, budget)
        return [
            Ready(self._cached(each), self.steps, described(each), choice.samples, choice.sample_calls, calls)
            for each, calls in choice.settings
        ]

    def _cached(self, method: Any) -> Callable[[], AbstractContextManager[Callable[[], Computed]]]:
        from budcache.baselines import caching

        @contextmanager
        def running() -> Iterator[Callable[[], Computed]]:
            with caching(self.pipe, method, self.steps) as runs:
                yield lambda: runs.finished[-1]

        return running


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
    def told() -> Iterator[Callable[[], Computed]]:
        yield lambda: Computed.of(Mask.full(max(1, min(int(pipe.num_timesteps), steps))))

    @contextmanager
    def counted() -> Iterator[Callable[[], Computed]]:
        from budcache.pipeline.steps import followed

        count = _Count()
        with followed(pipe, steps, count):
            yield lambda: Computed.of(Mask.full(count.steps))

    # Most pipelines tell how many steps they ran; modular ones do not.
    return Ready(told if hasattr(type(pipe), "num_timesteps") else counted, steps, whole=True)


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
