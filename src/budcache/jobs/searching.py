"""A search: full runs, masks by a strategy, and the choice among the finalists of every budget."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from budcache.errors import RecordError, SearchError
from budcache.events import RungDone, RungFound, Watch
from budcache.jobs import estimate as phases
from budcache.jobs.align_newton import Newton
from budcache.jobs.choosing import Candidate, best_candidate, best_with_fit, best_without_judge
from budcache.jobs.config import SearchConfig, with_care
from budcache.jobs.hunting import Hunt, identity, strategy_name
from budcache.jobs.refining import SETTINGS, better_rows, blended, gain
from budcache.jobs.setup import Setup
from budcache.jobs.trying import from_runs, tried_as_served, unlikely
from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy, Quality, Refined, Searched
from budcache.rows import MAX_BLEND
from budcache.samples.samples import are_mixed
from budcache.strategies import Exhaustive, Found, LadderSearch, Ledger, Paths, Polished
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.calibration.asking import Asked
    from budcache.calibration.judge import Judge
    from budcache.records.record import Record
    from budcache.refine.fit import FittedScorer

T = TypeVar("T")
EXPERTS = 2  # networks that take over from each other, at most

__all__ = ["Search", "check_record"]


@dataclass
class _Masks:
    """What the search for masks has come to."""

    found: Found  # with plain reuse; paths: with the reuse that is served
    field: dict[int, list[Mask]]  # the finalists of every budget
    fitted: Found | None = None
    fitters: Sequence[FittedScorer] = ()


@dataclass
class Search:
    """One search: full runs, masks, and the choice among the finalists."""

    setup: Setup
    config: SearchConfig
    samples: Sequence[Mapping[str, Any]]
    record: Record | None = None

    def __post_init__(self) -> None:
        self.searched_on = self.config.searched_on(len(self.samples))
        strategy = strategy_name(self.config.strategy)
        self.config = replace(self.config.suited(len(self.samples)), guided=self.setup.guided(self.samples))
        told = with_care(strategy, self.config.care)
        self.origin = self.setup.origin(self.samples, seed=self.config.seed, strategy=told)
        if self.setup.switch is not None and not self.setup.across:
            self._check_experts(strategy)
        if self.record is not None:  # what can be refused is refused before the full runs; their levels come with them
            check_record(self.record, self.config)
            self.record.like(self.origin, self.config.steps)

    def _check_experts(self, strategy: str) -> None:
        """Refuse what would reuse outputs of one expert in the place of another's."""
        least = min(self.config.budgets)
        if least < EXPERTS:
            raise SearchError(
                f"the pipeline has {EXPERTS} experts, and a budget of {least} does not compute the first step of each. "
                f"Choose {EXPERTS} or more, or across=True."
            )
        if not self.config.as_served:
            raise SearchError(
                f"the pipeline has {EXPERTS} experts, and the strategy {strategy} does not know that the second one's "
                'first step must be computed. Use strategy="paths" with reuse="output", or across=True.'
            )

    def run(self, ledger: str | os.PathLike[str] | None, watch: Watch) -> Ladder:
        """Search, choose, and put the ladder together."""
        config = self.config
        with ExitStack() as stack:
            kept = (
                None if ledger is None else Ledger(ledger, identity(self.setup, config, self.origin, self.searched_on))
            )
            self.hunt = stack.enter_context(Hunt(config, watch, kept))
            self.meter = self.hunt.meter
            self.meter.plan(
                phases.search_phases(config, len(self.samples)),
                "; ".join(filter(None, (phases.all_masks(config), _going_on(kept)))),
            )
            self.meter.phase(phases.FULL_RUNS)
            searched_on = self.samples[: self.searched_on]
            known = stack.enter_context(
                self.setup.calibration(searched_on, config.seed, self.meter.spent, record=config.as_served)
            )
            self.hunt.calibrations.append(known)
            if config.as_served:
                masks, policies = self._as_served(stack, known)
            else:
                masks = self._plain_then_fitted(known)
                policies = self._chosen(stack, masks, known)
            calls = self.hunt.spent()
            self.meter.finish(self.hunt.calls)
        origin = self.origin.model_copy(update={"calls": calls, "levels": known.levels})
        ladder = Ladder.of([self._finished(policy, origin, masks.found) for policy in policies])
        for rung in ladder:
            self.meter.tell(RungDone("search", rung))
        both = [found for found in (masks.found, masks.fitted) if found is not None]
        history = tuple(event for found in both for event in found.history)
        stopped = next((found.stopped for found in both if found.stopped), None)
        return ladder.told(Searched(history, calls, self.hunt.earlier, self.hunt.seconds, stopped))

    def _as_served(self, stack: ExitStack, known: Asked) -> tuple[_Masks, list[Policy]]:
        """The shortest paths through the full runs (F10), or all masks, tried as they will be served.

        The best by decoded pictures is chosen.
        """
        from budcache.calibration.judge import Judge
        from budcache.records.paths import ShortestPaths

        config, grams = self.config, known.grams
        if self.record is not None:
            grams += self.record.like(self.origin, config.steps, grams.levels)
        every = isinstance(config.strategy, Exhaustive)
        find = ShortestPaths.through(grams, config.budgets, config.fitted, known.switch, every)
        # What the full runs say is of typical errors of latents; whoever asks for something else gets that alone.
        usual = config.objective == "latent" and config.care == "typical"
        weigh = partial(unlikely, find) if every and usual else None
        found, scorer, scores = tried_as_served(config, self.hunt, known, find, weigh)
        candidates = {
            b: [Candidate(blended(Policy(mask=mask), score), score) for mask, score in tried]
            if (tried := [(mask, score) for mask, score in scores.items() if mask.budget == b])
            else [Candidate(from_runs(find, b, config.fitted), None)]
            for b in config.budgets
        }
        judge, by_pictures = self._put_aside(stack), config.objective == "latent"
        choose = partial(best_candidate, judge=judge, care=config.care, by_pictures=by_pictures, weigh=weigh)
        chosen = self._each(candidates, judge, choose)
        if config.fitted:
            scorer.forget()  # its states have done their work
            own = Judge(known, care=config.care)
            for each in (each for tried in candidates.values() for each in tried):
                if each.score is not None:
                    own.know(each.policy, each.score)
            chosen = self._refined(chosen, known, judge, own)
        return _Masks(found, {}), chosen

    def _refined(
        self, policies: list[Policy], known: Asked, judge: Judge | None, own: Judge | None = None
    ) -> list[Policy]:
        """What was found for every budget with better forms of rows, and aligned if that is wanted.

        `own` judges by the samples searched on, where none were put aside, and may know some policies already.
        """
        from budcache.calibration.judge import Judge

        own = own or Judge(known, care=self.config.care)
        config = self.config
        features = are_mixed(self.samples) if config.features is None else config.features
        journal = None if self.hunt.ledger is None else self.hunt.ledger.journal
        newton = Newton(known, judge, config.care, journal, spent=self.hunt.spent)
        if phases.REFINING in [phase.name for phase in phases.search_phases(config, len(self.samples))]:
            self.meter.phase(phases.REFINING)
        found = []
        for number, policy in enumerate(policies, 1):
            if self.hunt.is_over:
                found.append(policy)  # there is no time or no call left to make more of it
                continue
            before, earlier = self.hunt.calls, newton.earlier
            if judge is not None:
                judge.forget(*policies[number - 1 :])
            fitted = self._better(policy, known, judge, own, features) if config.as_served else policy
            after = newton.aligned(fitted) if config.refine == "full" and fitted.is_blended else fitted
            if after is not policy:
                how, calls = "rows" if after is fitted else "align", self.hunt.calls - before + newton.earlier - earlier
                line = Refined(how=how, prompts=len(self.samples), calls=calls)
                after = self._measured(policy, after, judge or own, line)
            # On samples that were fitted only what is known anyway: their figures are bounds, and runs cost.
            left = own.left_of(after, plain=False) if judge is None else judge.left_of(after)
            own.forget()
            found.append(after.model_copy(update={"quality": (after.quality or Quality()).model_copy(update=left)}))
            self.meter.tell(RungFound("search", found[-1]))
            part = number / len(policies)
            self.meter.spent(self.hunt.calls, part=part, note=f"{policy.budget} of {config.steps} calls, refined")
        return found

    def _better(self, policy: Policy, known: Asked, judge: Judge | None, own: Judge, features: bool) -> Policy:
        """A policy in the form that is best on the samples put aside; where there are none, on those searched on.

        There the simpler form, three outputs by the solver, is not tried: it would never be better. (`budcache fit`
        tries more of them: other numbers of outputs, and ridges.)
        """
        from budcache.refine.fit import FittedScorer, Form

        rows = Form(outputs=MAX_BLEND, noise=True)
        if judge is not None:
            by_solver = FittedScorer(known).fit(policy.mask)
            policy = judge.best([policy, blended(policy, by_solver)])
        return better_rows(policy, rows, known, judge or own, features)

    def _measured(self, before: Policy, after: Policy, judge: Judge, line: Refined) -> Policy:
        """A policy that was refined, with its quality and what that was worth."""
        quality, fitted = judge.quality(after, used_to_choose=True), after.quality
        if judge.calibration in self.hunt.calibrations[:1]:  # nothing was put aside
            quality = quality.model_copy(update={"loss": None, "used_to_fit": True})
        line = line.model_copy(update={"gain": gain(before.quality or Quality(), quality)})
        loss = fitted.calibration_loss if fitted else None
        update = {"quality": quality.model_copy(update={"calibration_loss": loss})}
        return after.model_copy(update=update | {"refined": (*before.refined, line)})

    def _plain_then_fitted(self, known: Asked) -> _Masks:
        """Search with plain and, if wanted, fitted reuse."""
        from budcache.calibration.scoring import PlainScorer
        from budcache.refine.fit import FittedScorer

        config = self.config
        plain = PlainScorer(known, memory=config.state_memory)
        found = self.hunt.run(config.first, plain, phases.SEARCHING)
        field = {b: found.best(b, phases.FINALISTS) for b in config.budgets if found.best(b)}
        if not field:
            raise SearchError(
                f"the search stopped at its {found.stopped} before any budget was reached. Allow it more; with a "
                "ledger it goes on from there."
            )
        if not config.fitted:
            return _Masks(found, field)
        plain.forget()  # its states have done their work
        memory = [config.state_memory, *[0] * (len(SETTINGS) - 1)]
        fitters = [
            FittedScorer(known, outputs=outputs, ridge=ridge, memory=bound)
            for (outputs, ridge), bound in zip(SETTINGS, memory, strict=True)
        ]
        starts = tuple(masks[0] for masks in field.values())
        ladder = config.strategy if isinstance(config.strategy, LadderSearch) else None
        again = Polished(ladder, starts, config.polish, config.rounds)
        fitted = self.hunt.run(again, fitters[0], phases.FITTED)
        field = {b: [*fitted.best(b, phases.FINALISTS), *masks[:1]] for b, masks in field.items()}
        return _Masks(found, field, fitted, fitters)

    def _chosen(self, stack: ExitStack, masks: _Masks, known: Asked) -> list[Policy]:
        """The best of every budget's finalists, on the samples put aside if there are some."""
        reuse, prompts, judge = self.config.reuse, len(self.samples), self._put_aside(stack)
        if judge is None:
            choose = partial(best_without_judge, found=masks.found, fitters=masks.fitters[:1])
            chosen = self._each(masks.field, None, choose)
        else:
            choose = partial(best_with_fit, reuse=reuse, fitters=masks.fitters, judge=judge, prompts=prompts)
            chosen = self._each(masks.field, judge, choose)
        return self._refined(chosen, known, judge) if self.config.refine == "full" else chosen

    def _put_aside(self, stack: ExitStack) -> Judge | None:
        """Who judges by the samples that nothing was searched on, if there are some."""
        from budcache.calibration.judge import Judge

        config, aside = self.config, self.samples[self.searched_on :]
        if not aside:
            return None
        self.meter.phase(phases.CHOOSING)
        kept_out = stack.enter_context(self.setup.calibration(aside, config.seed + self.searched_on, whole=False))
        self.hunt.calibrations.append(kept_out)
        return Judge(kept_out, config.state_memory, config.care)

    def _each(self, field: Mapping[int, T], judge: Judge | None, choose: Callable[[T], Policy]) -> list[Policy]:
        """The choice of every budget."""
        policies: list[Policy] = []
        for number, (budget, finalists) in enumerate(field.items(), 1):
            if judge is not None:
                judge.forget(*policies)  # which are measured again, if they are refined
            policies.append(choose(finalists))
            self.meter.tell(RungFound("search", policies[-1]))
            self.meter.spent(self.hunt.calls, part=number / len(field), note=f"{budget} of {self.config.steps} calls")
        return policies

    def _finished(self, policy: Policy, origin: Origin, found: Found) -> Policy:
        """A chosen policy with its origin, and the loss that it was found with."""
        quality = policy.quality or Quality()
        if not policy.is_blended and policy.mask in found.scores:
            quality = quality.model_copy(update={"calibration_loss": found.scores[policy.mask].loss})
        return policy.model_copy(update={"reuse": self.config.reuse, "origin": origin, "quality": quality})


def check_record(record: Record, config: SearchConfig) -> None:
    """Refuse a record that a search cannot start from, whatever the model."""
    if not isinstance(config.strategy, Paths):
        raise SearchError("a record is for paths, which are found from full runs. Leave it out, or use paths.")
    if config.steps not in {runs.steps for runs in record}:
        raise RecordError(
            f"the record has no runs of {config.steps} steps: it has {record.summary}. Leave it out, or record some."
        )


def _going_on(ledger: Ledger | None) -> str:
    """A clause that says so where an earlier run left scores."""
    if ledger is None or not ledger.known:
        return ""
    return f"going on with {several(len(ledger.known), 'score')} of an earlier run, full runs are made again"
