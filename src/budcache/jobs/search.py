"""`budcache.search`: the policies of one or several budgets, from one search on a pipeline."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from budcache.errors import SearchError
from budcache.events import RungDone, Scored, Watch
from budcache.jobs import estimate as phases
from budcache.jobs.config import POLISH, ROUNDS, STATE_MEMORY, SearchConfig, known_options, one_or_several
from budcache.jobs.meter import Meter
from budcache.jobs.refining import SETTINGS, best_fit, gain
from budcache.jobs.setup import Setup, check_call
from budcache.jobs.watching import watching
from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy, Quality, Refined, Reuse, Searched
from budcache.samples.samples import split, take_samples
from budcache.strategies import STRATEGIES, Found, LadderSearch, Ledger, Limits, Polished, Strategy, drive
from budcache.strategies import strategy as by_name

if TYPE_CHECKING:
    from budcache.calibration.calibration import Calibration
    from budcache.calibration.judge import Judge
    from budcache.calibration.objectives import ObjectiveLike
    from budcache.calibration.scoring import Scorer
    from budcache.refine.fit import FittedScorer

__all__ = ["search"]


@known_options
def search(
    pipe: Any,
    *,
    steps: int,
    budgets: int | Iterable[int],
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    call: Mapping[str, Any] | None = None,
    strategy: str | Strategy = "ladder",
    reuse: Reuse = "output",
    fit: bool | None = None,
    polish: int = POLISH,
    rounds: int | None = ROUNDS,
    teacher_steps: int | None = None,
    seed: int = 0,
    selection: int | None = None,
    batch: int = 1,
    objective: ObjectiveLike = "latent",
    limits: Limits | None = None,
    state_memory: int = STATE_MEMORY,
    ledger: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    watch: Watch | None = None,
) -> Ladder:
    """Find the policies of one or several budgets for a pipeline.

    Args:
        pipe: any diffusers pipeline; it is left exactly as it is.
        steps: K of the full run that is to be imitated.
        budgets: model calls per sample to search for: one number, or several from one search.
        prompts: what to calibrate on; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        call: keyword arguments of the pipeline that all samples share: sizes, guidance, a negative prompt.
        strategy: how to search: a name from `strategies.STRATEGIES`, or a strategy.
        reuse: "output" or "residual".
        fit: whether reuse is fitted in closed form, too; None does so where it can be, with output reuse. The ladder
            is then climbed a second time, with fitted stretches, and the finalists of both are fitted.
        polish: how far a computed step may move in the climb that follows, with fitted reuse if there is a fit; 0
            leaves the climb out.
        rounds: moves of that climb at most; 0 makes none, None goes on until nothing improves, within the limits.
        teacher_steps: of a teacher that is finer than the full run; None is the full run itself.
        seed: of the search; sample i starts from noise of seed + i, unless it brings a generator or latents.
        selection: how many of the samples, the last ones, to keep out of the search and to judge its finalists by;
            None is a quarter of them.
        batch: how many samples to run at once.
        objective: what to keep small: "latent", the mean squared error of final latents; "pixel", that of decoded
            pictures; or any function of student, teacher and run.
        limits: where to stop even if the strategy would go on.
        state_memory: bytes for remembered states; fewer cost more calls but give the same losses.
        ledger: a file in which every score is kept, so that a killed search can go on.
        progress: whether to show a bar; None shows one in a terminal or a notebook.
        watch: called with every event (`budcache.events`).

    Returns:
        The ladder. Its attribute `searched` tells how it came about: history, sample-calls, limits reached.
    """
    config = SearchConfig(
        steps,
        one_or_several(budgets),
        by_name(strategy) if isinstance(strategy, str) else strategy,
        reuse,
        fit,
        polish,
        rounds,
        teacher_steps,
        seed,
        selection,
        batch,
        objective,
        limits or Limits(),
        state_memory,
    )
    given = take_samples(prompts, samples, call)
    check_call(pipe, given, "search")
    job = _Search(Setup(pipe, steps, reuse, batch, objective, teacher_steps), config, given)
    with watching(watch, progress) as everybody:
        return job.run(ledger, everybody)


@dataclass
class _Search:
    """One search: full runs, masks with plain reuse, masks with fitted reuse, and the choice among the finalists."""

    setup: Setup
    config: SearchConfig
    samples: Sequence[Mapping[str, Any]]
    searched_on: int = 0
    ledger: Ledger | None = None
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.searched_on, self.limits = split(self.samples, self.config.selection), self.config.limits
        self.origin = self.setup.origin(
            self.samples, seed=self.config.seed, strategy=_strategy_name(self.config.strategy)
        )

    def run(self, ledger: str | os.PathLike[str] | None, watch: Watch) -> Ladder:
        """Search, choose, and put the ladder together."""
        config, begin = self.config, time.monotonic()
        with ExitStack() as stack:
            if ledger is not None:
                self.ledger = Ledger(ledger, self._identity())
                stack.callback(self.ledger.close)
            self.meter = Meter("search", watch, self.ledger.spent if self.ledger else 0)
            self.meter.plan(phases.search_phases(config, len(self.samples)))
            self.meter.phase(phases.FULL_RUNS)
            known = stack.enter_context(
                self.setup.calibration(self.samples[: self.searched_on], config.seed, self.meter.spent)
            )
            found, fitted, field, fitters = self._masks(known)
            policies = self._chosen(stack, known, found, field, fitters)
            calls = self.calls + (self.ledger.spent if self.ledger else 0)
            self.meter.finish(self.calls)
        origin = self.origin.model_copy(update={"calls": calls})
        ladder = Ladder.of([self._finished(policy, origin, found) for policy in policies])
        for rung in ladder:
            self.meter.tell(RungDone("search", rung))
        stopped = found.stopped or (fitted.stopped if fitted else None)
        history = (*found.history, *(fitted.history if fitted else ()))
        earlier = self.ledger.spent if self.ledger else 0
        return ladder.told(Searched(history, calls, earlier, time.monotonic() - begin, stopped))

    def _masks(self, known: Calibration) -> tuple[Found, Found | None, dict[int, list[Mask]], list[FittedScorer]]:
        """Search with plain and, if wanted, fitted reuse; the finalists of every budget."""
        from budcache.calibration.scoring import PlainScorer
        from budcache.refine.fit import FittedScorer

        config = self.config
        self._calibrations: list[Calibration] = [known]
        plain = PlainScorer(known, memory=config.state_memory)
        found = self._hunt(config.first, plain, phases.SEARCHING)
        field = {b: found.best(b, phases.FINALISTS) for b in config.budgets if found.best(b)}
        if not field:
            raise SearchError(
                f"the search stopped at its {found.stopped} before any budget was reached. Allow it more; with a "
                "ledger it goes on from there."
            )
        if not config.fitted:
            return found, None, field, []
        plain.prefixes.forget()  # its states have done their work
        memory = [config.state_memory, *[0] * (len(SETTINGS) - 1)]
        fitters = [
            FittedScorer(known, outputs=outputs, ridge=ridge, memory=bound)
            for (outputs, ridge), bound in zip(SETTINGS, memory, strict=True)
        ]
        starts = tuple(masks[0] for masks in field.values())
        ladder = config.strategy if isinstance(config.strategy, LadderSearch) else None
        again = Polished(ladder, starts, config.polish, config.rounds)
        fitted = self._hunt(again, fitters[0], phases.FITTED)
        field = {b: [*fitted.best(b, phases.FINALISTS), *masks[:1]] for b, masks in field.items()}
        return found, fitted, field, fitters

    def _hunt(self, strategy: Strategy, scorer: Scorer, phase: str) -> Found:
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
            return scorer.score_many(ask.masks)

        self.meter.phase(phase)
        with out_of_memory_as_error():
            found = drive(
                strategy,
                score if keep is None else keep.remembering(score, lambda: self.calls, scorer.kind),
                steps=self.config.steps,
                budgets=self.config.budgets,
                seed=self.config.seed,
                limits=self.limits,
                # What earlier runs of a killed search have spent counts, too.
                calls=lambda: self.calls if keep is None else keep.calls,
                watch=told,
            )
        found.history = [named(event) for event in found.history]
        self.limits = self.limits.after(time.monotonic() - begin, len(found.scores))
        return found

    @property
    def calls(self) -> int:
        """Sample-calls of this process."""
        return sum(calibration.calls for calibration in self._calibrations)

    def _chosen(
        self,
        stack: ExitStack,
        known: Calibration,
        found: Found,
        field: dict[int, list[Mask]],
        fitters: Sequence[FittedScorer],
    ) -> list[Policy]:
        """The best of every budget's finalists, on the samples put aside if there are some."""
        from budcache.calibration.judge import Judge

        if self.searched_on == len(self.samples):
            return [_untested(masks, found, fitters[:1]) for masks in field.values()]
        self.meter.phase(phases.CHOOSING)
        put_aside = self.setup.calibration(self.samples[self.searched_on :], self.config.seed + self.searched_on)
        judge = Judge(stack.enter_context(put_aside), self.config.state_memory)
        self._calibrations.append(judge.calibration)
        policies = []
        for number, (budget, masks) in enumerate(field.items(), 1):
            judge.forget()
            policies.append(self._choose([*masks, Mask.uniform(self.config.steps, budget)], fitters, judge))
            self.meter.spent(self.calls, part=number / len(field), note=f"{budget} of {self.config.steps} calls")
        return policies

    def _choose(self, masks: Sequence[Mask], fitters: Sequence[FittedScorer], judge: Judge) -> Policy:
        """The best of one budget's finalists on samples that were not searched on, fitted if there are fitters.

        Uniform spacing is among them: it needs no search, so what a search finds has to be better than it.
        """
        policies = [Policy(mask=mask, reuse=self.config.reuse) for mask in masks]
        if not fitters:
            chosen = judge.best(policies)
            return chosen.model_copy(update={"quality": judge.quality(chosen, used_to_choose=True)})
        before, (plain, chosen) = self.calls, best_fit(fitters, judge, policies)
        quality = judge.quality(plain, used_to_choose=True), judge.quality(chosen, used_to_choose=True)
        line = Refined(
            how="fit" if chosen.weights else "fit, no gain",
            prompts=len(self.samples),
            calls=self.calls - before,
            gain=gain(*quality),
        )
        loss = chosen.quality.calibration_loss if chosen.quality else None
        after = quality[1].model_copy(update={"calibration_loss": loss})
        return chosen.model_copy(update={"quality": after, "refined": (line,)})

    def _finished(self, policy: Policy, origin: Origin, found: Found) -> Policy:
        """A chosen policy with its origin, and the loss that it was found with."""
        quality = policy.quality or Quality()
        if policy.weights is None and policy.mask in found.scores:
            quality = quality.model_copy(update={"calibration_loss": found.scores[policy.mask].loss})
        return policy.model_copy(update={"reuse": self.config.reuse, "origin": origin, "quality": quality})

    def _identity(self) -> dict[str, Any]:
        """What the scores in a ledger depend on."""
        from budcache.calibration.objectives import name_of

        config, of_others = self.config, {"prompts", "strategy", "calls", "versions"}
        return self.origin.model_dump(mode="json", exclude=of_others) | {
            "number format": str(getattr(self.setup.pipe, "dtype", None)).removeprefix("torch."),
            "steps": config.steps,
            "reuse": config.reuse,
            "batch": config.batch,
            "samples searched on": self.searched_on,
            "strategy": repr(config.first),
            "objective": name_of(config.objective),
        }


def _untested(masks: Sequence[Mask], found: Found, fitters: Sequence[FittedScorer]) -> Policy:
    """The best of one budget's finalists where there are no samples to judge by: by the loss that it was found with."""
    from budcache.calibration.aggregate import mean

    mask = min((mask for mask in masks if mask in found.scores), key=lambda mask: found.scores[mask].loss)
    candidates, lines = [(found.scores[mask].loss, Policy(mask=mask))], []
    for fitter in fitters:
        before = fitter.calibration.calls
        rows, losses = fitter.fit(masks[0])
        candidates.append((mean(losses), Policy(mask=masks[0], weights=rows)))
        lines.append((fitter.calibration.samples, fitter.calibration.calls - before))
    loss, chosen = min(candidates, key=lambda candidate: candidate[0])
    how = "fit, not held out" if chosen.weights else "fit, no gain"
    refined = tuple(Refined(how=how, prompts=samples, calls=calls) for samples, calls in lines)
    return chosen.model_copy(update={"quality": Quality(calibration_loss=loss), "refined": refined})


def _strategy_name(strategy: Strategy) -> str:
    """A strategy's name, or what it says of itself, or at least its class."""
    named = next((name for name, known in STRATEGIES.items() if known == strategy), repr(strategy))
    return type(strategy).__name__ if named.startswith("<") else named
