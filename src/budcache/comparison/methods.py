"""The methods that can be compared: how each of them is brought to a budget, and run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from budcache.comparison.folder import FolderError
from budcache.errors import BudcacheError
from budcache.jobs.search import search
from budcache.mask import Mask
from budcache.policy import Ladder, Policy

__all__ = ["METHODS", "UNTAUGHT", "Ready", "Workshop", "plain", "title", "usual"]

# The published search takes thousands of calls for each budget, so it takes part when it is asked for.
_OURS = {
    "fewer-steps": "fewer steps",
    "uniform": "uniform mask",
    "authors": "published search",
    "authors-quick": "published search, quick",
    "budcache-plain": "budcache, plain reuse",
    "budcache": "budcache",
}
_THEIRS = {
    "teacache": "TeaCache",
    "magcache": "MagCache",
    "lemica": "LeMiCa",
    "dicache": "DiCache",
    "ertacache": "ERTACache",
    "taylorseer": "TaylorSeer",
    "diffusers-magcache": "MagCache (diffusers)",
    "diffusers-firstblock": "First Block Cache (diffusers)",
    "diffusers-taylorseer": "TaylorSeer (diffusers)",
    "cache-dit": "cache-dit",
    "cache-dit-preset": "cache-dit, preset mask",
}
_AUTHORS = {"authors": "authors-r2-sa100", "authors-quick": "authors-r1-sa20"}
UNTAUGHT = ("fewer-steps", "uniform")  # need no prompts to be made on
AUTHORS_PROMPTS = 2
TUNING_PROMPTS = 16  # that thresholds are bisected on

METHODS = {"fewer-steps": _OURS["fewer-steps"], "uniform": _OURS["uniform"], **_THEIRS, **_OURS}


def usual() -> list[str]:
    """The methods that take part where none are named: all that are installed, but for the slow published search."""
    from budcache.baselines import BASELINES

    return [name for name in METHODS if name not in _AUTHORS and (name not in BASELINES or BASELINES[name].available())]


def title(method: str) -> str:
    """A method's name for people."""
    return METHODS.get(method, method.removeprefix("policy:"))


@dataclass(frozen=True)
class Ready:
    """A method at a budget: `running` puts it on the pipeline and gives a function that tells the last run's mask."""

    running: Callable[[], AbstractContextManager[Callable[[], Mask]]]
    steps: int  # to ask the pipeline for
    knob: str | None = None
    learned_on: int | None = None  # prompts that it was searched, fitted or tuned on


@dataclass
class Workshop:
    """Brings methods to budgets. What several of them need (a search, a recorded run) is made once, when first needed.

    Args:
        calibration: samples to search, fit and tune on.
        folder: where searches are kept.
        policies: ladders that are there already, by method.
        say: told what is being done.
    """

    pipe: Any
    steps: int
    budgets: Sequence[int]
    calibration: Sequence[Mapping[str, Any]]
    folder: Path
    policies: Mapping[str, Ladder]
    seed: int
    batch: int
    say: Callable[[str], None] = field(default=lambda text: None)
    _calibrated: dict[str, Any] = field(default_factory=dict)

    def made_of(self, method: str) -> str:
        """A fingerprint of what a method is given beside the comparison's own settings."""
        if method not in self.policies:
            return ""
        return hashlib.sha256(self.policies[method].model_dump_json().encode()).hexdigest()[:16]

    def ready(self, method: str, budget: int) -> Ready:
        """Bring a method to a budget."""
        if method in self.policies:
            return self._policy(self.policies[method][budget])
        if method == "fewer-steps":
            return plain(budget)
        if method == "uniform":
            return self._policy(Policy(mask=Mask.uniform(self.steps, budget)))
        if method in ("budcache", "budcache-plain"):
            return self._policy(self._ladder(method)[budget])
        if method in _AUTHORS:
            return self._policy(self._published(method, budget))
        return self._baseline(method, budget)

    def _ladder(self, method: str) -> Ladder:
        """Ours: searched, and fitted unless it is the plain one; from the folder, if an earlier run got that far."""
        file = self.folder / f"{method}.ladder.json"
        # Both search the same masks with plain reuse, so what one has scored the other need not.
        ledger = self.folder / "search.ledger.jsonl"
        with _files(file, ledger):
            if file.exists():
                kept = Ladder.load(file)
                if set(self.budgets) <= set(kept.budgets):
                    return kept
            self.say(f"{title(method)}: searching")
            found = search(
                self.pipe,
                steps=self.steps,
                budgets=self.budgets,
                samples=self.calibration,
                fit=method == "budcache",
                seed=self.seed,
                batch=self.batch,
                ledger=ledger,
                progress=False,
            )
            found.save(file)
            return found

    def _published(self, method: str, budget: int) -> Policy:
        """The authors' search as published: their annealing, residual reuse, two prompts, one budget at a time."""
        self.say(f"{title(method)}: searching for {budget} calls")
        # Their code for Wan moves in another way, and looks at decoded frames.
        wan = method == "authors" and type(self.pipe).__name__.startswith("Wan")
        ledger = self.folder / f"{method}-{budget}.ledger.jsonl"
        with _files(ledger):
            return search(
                self.pipe,
                steps=self.steps,
                budgets=budget,
                samples=self.calibration[:AUTHORS_PROMPTS],
                strategy="authors-wan" if wan else _AUTHORS[method],
                objective="pixel" if wan else "latent",
                reuse="residual",
                selection=0,
                seed=self.seed,
                batch=min(self.batch, AUTHORS_PROMPTS),
                ledger=ledger,
                progress=False,
            )[budget]

    def _policy(self, policy: Policy) -> Ready:
        from budcache.pipeline import applied

        @contextmanager
        def running() -> Iterator[Callable[[], Mask]]:
            with applied(self.pipe, policy) as handle:

                def last() -> Mask:
                    calls = handle.stats().last_run_calls
                    if calls != policy.budget:  # the promise of a policy; better said than drawn
                        raise BudcacheError(f"a policy of {policy.budget} calls made {calls}. Report this as a bug.")
                    return policy.mask

                yield last

        return Ready(running, policy.steps, learned_on=policy.origin.prompts if policy.origin else None)

    @cached_property
    def _record(self) -> Any:
        from budcache.baselines import record

        self.say("others: recording full runs")
        return record(self.pipe, self.steps, self._tuning, batch=self.batch)

    @property
    def _tuning(self) -> list[dict[str, Any]]:
        """The samples that thresholds are tuned on, each with a noise of its own."""
        import torch

        return [
            {**sample, "generator": torch.Generator("cpu").manual_seed(self.seed + number)}
            for number, sample in enumerate(self.calibration[:TUNING_PROMPTS])
        ]

    def _baseline(self, method: str, budget: int) -> Ready:
        from budcache.baselines import BASELINES, caching, tune

        if method not in self._calibrated:
            self.say(f"{title(method)}: calibrating")
            self._calibrated[method] = BASELINES[method].calibrated(self._record)
        self.say(f"{title(method)}: tuning to {budget} calls")
        tuned = tune(self.pipe, self._calibrated[method], budget, self._tuning)

        @contextmanager
        def running() -> Iterator[Callable[[], Mask]]:
            with caching(self.pipe, tuned, self.steps) as runs:
                yield lambda: runs.masks[-1]

        knob = f"{tuned.knob.name} {getattr(tuned, tuned.knob.name):.4g}"
        return Ready(running, self.steps, knob, len(self._tuning))


@contextmanager
def _files(*paths: Path) -> Iterator[None]:
    """Trouble with a file of the folder is nobody's fault among the methods: it ends the comparison."""
    try:
        yield
    except BudcacheError as error:
        if any(str(path) in str(error) for path in paths):  # which such errors name, and others do not
            raise FolderError(str(error).replace("--ledger", "--out")) from None
        raise


def plain(steps: int) -> Ready:
    """The pipeline as it is, with so many steps."""
    return Ready(lambda: nullcontext(lambda: Mask.full(steps)), steps)
