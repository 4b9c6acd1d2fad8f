"""Bringing a method to a budget: ours searched, the others at settings chosen, on the calibration samples."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.aggregate import Care
from budcache.comparison import choosing, searching
from budcache.comparison.choosing import Choosing
from budcache.comparison.entry import FULL
from budcache.comparison.kept import aside_of, of_the_folder, put_aside
from budcache.comparison.methods import AUTHORS, OURS, SOLVERS, UNTAUGHT
from budcache.comparison.ready import Ready, cached, following, plain
from budcache.comparison.settings import Settings, described
from budcache.errors import SearchError
from budcache.jobs.config import care_of
from budcache.jobs.meter import Meter
from budcache.jobs.setup import Elsewhere, Setup
from budcache.mask import Mask
from budcache.pipeline.experts import switch_of
from budcache.policy import Ladder, Origin, Policy
from budcache.samples.samples import runs_of
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.workers import Workers
    from budcache.workers.team import Team

__all__ = ["LEDGER", "Preparation"]

# What rows of other solvers are made of: before, they had no settings to choose, and their rows are drawn again.
SOLVED = "settings chosen"
LEDGER = "search.ledger.jsonl"  # of our searches, in the folder of the comparison


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
        care: what our searches and the choice of others' settings go by, typical errors or the worst ones.

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
    care: Care = "typical"
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
            return SOLVED if method in SOLVERS else ""
        return hashlib.sha256(given.encode()).hexdigest()[:16]

    def is_whole(self, method: str) -> bool:
        """Whether a method's calls are of the whole network, as far as is known before it is ready; see `Ready`."""
        given = self.policies.get(method)
        return (
            method in (*UNTAUGHT, *SOLVERS, *OURS) if given is None else all(rung.reuse == "output" for rung in given)
        )

    def expected_calls(self, method: str) -> int:
        """About how many sample-calls it will take to bring a method to all budgets."""
        if method in (*self.policies, *UNTAUGHT):
            return 0
        if method in (*OURS, *AUTHORS):
            groups = [self.budgets] if method in OURS else [[budget] for budget in self.budgets]
            steps, count, kind = self.steps, len(self.calibration), self._kind
            return sum(searching.expected_calls(method, steps, those, count, kind) for those in groups)
        missing = self.to_choose(method)
        return choosing.expected_calls(method, self.steps, missing, len(self.calibration), self.care) if missing else 0

    def to_choose(self, method: str) -> list[int]:
        """The budgets at which another method's settings have to be chosen."""
        if method == FULL or method in (*self.policies, *UNTAUGHT, *OURS, *AUTHORS):
            return []
        given = self.settings
        return [budget for budget in self.budgets if given is None or given.find(method, budget) is None]

    def ready(self, method: str, budget: int) -> list[Ready]:
        """Bring a method to a budget, once; who cannot meet it has settings on both sides, the nearest first."""
        if (method, budget) not in self._brought:
            alone = method in self.policies or method in (*UNTAUGHT, *OURS, *AUTHORS)
            found = [self._one(method, budget)] if alone else self._baseline(method, budget)
            self._brought[method, budget] = found
        return self._brought[method, budget]

    def _one(self, method: str, budget: int) -> Ready:
        if method in self.policies:
            return following(self.pipe, self.policies[method][budget])
        if method == "fewer-steps":
            return plain(self.pipe, budget)
        if method == "uniform":
            return following(self.pipe, Policy(mask=Mask.uniform(self.steps, budget)))
        if method in OURS:
            return following(self.pipe, self._ladder(method)[budget])
        if method in AUTHORS:
            return following(self.pipe, self._search(method, [budget], f"{method}-{budget}.ledger.jsonl")[budget])
        raise AssertionError(method)

    def _ladder(self, method: str) -> Ladder:
        """Ours: from the folder as far as an earlier run got, and searched for the budgets that are missing there."""
        file = self.folder / f"{method}.ladder.json"
        ledger = self.folder / (LEDGER if method == "budcache" else f"{method}.ledger.jsonl")
        kept = self._kept(file, ledger)
        missing = sorted(set(self.budgets) - {rung.budget for rung in kept})
        if missing:
            # Rungs that are there stay: pictures have been drawn by them.
            kept += self._search(method, missing, ledger.name)
            Ladder.of(kept).save(file)
        return Ladder.of(kept)

    def _kept(self, file: Path, ledger: Path) -> list[Policy]:
        """The rungs that an earlier run found; a ladder of another search is put aside, for it may have cost much.

        The ledger that it came from is, too: a search would not go on with it.
        """
        if not file.exists():
            return []
        with of_the_folder():
            ladder = Ladder.load(file)
        differs = self._difference(ladder)
        if differs is None:
            return list(ladder)
        again = "the search is made again; to compare that ladder, give it as a policy"
        put_aside(file, f"is no ladder of this comparison's search: {differs}", again)
        if ledger.exists():
            ledger.replace(aside_of(ledger))
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
                if theirs != here and name == "prompts_hash":
                    return "it was made on other prompts"
                if theirs != here:
                    return f"{name} is {quote(theirs)} in one and {quote(here)} in the other"
            how = rung.origin.strategy if rung.origin else None
            if how is not None and care_of(how) != self.care:
                return f"it was searched by {how}, and this comparison has care for {self.care} errors"
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
        return searching.searched(
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
            care=self.care,
        )

    def _baseline(self, method: str, budget: int) -> list[Ready]:
        choice = self._choosing.choice(method, budget)
        taken = {"learned_on": choice.samples, "learning_calls": choice.sample_calls}
        return [
            cached(self.pipe, each, self.steps, knob=described(each), expected=calls, **taken)
            for each, calls in choice.settings
        ]

    @cached_property
    def _choosing(self) -> Choosing:
        where = self.pipe, self.steps, self.calibration, self.folder
        return Choosing(*where, self._searched_on, self.seed, self.batch, self.meter, self.settings, self.care)
