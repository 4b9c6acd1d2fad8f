"""Alignment by gradients (Algorithm 3) on a pipeline, rung by rung, every update kept in a ledger."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from budcache.events import RungDone, Updated
from budcache.jobs import estimate as phases
from budcache.jobs.config import AlignConfig
from budcache.jobs.meter import Meter
from budcache.jobs.refining import gain, refined
from budcache.jobs.setup import Setup
from budcache.mask import Mask
from budcache.policy import Ladder, Policy, Refined
from budcache.samples.samples import seeded
from budcache.storage.journal import Journal

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration.judge import Judge
    from budcache.numerics.shelf import Shelf
    from budcache.refine.align import Descent, Lesson, Update

__all__ = ["GradientAlignment"]


@dataclass
class GradientAlignment:
    """The alignment of a ladder, rung by rung; they share their teachers."""

    pipe: Any
    config: AlignConfig
    samples: Sequence[Mapping[str, Any]]
    learned_on: int
    shelf: Shelf | None = None
    journal: Journal | None = None
    calls: int = 0  # sample-calls of the rung at work, without those of its judge
    before: int = 0  # sample-calls of the rungs before it
    earlier: int = 0  # those of all these that runs before this one had spent, by the ledger
    # Where each lesson's teacher ended, by epoch and sample: the same for all rungs.
    teachers: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def run(self, ledger: str | os.PathLike[str] | None, meter: Meter) -> Ladder:
        """Align every rung, and measure what it was worth."""
        import torch

        from budcache.pipeline import frozen

        config, self.meter = self.config, meter
        with ExitStack() as stack:
            if ledger is not None:
                self.journal = Journal(ledger, self._identity(), of="alignment")
                stack.callback(self.journal.close)
            meter.earlier = sum(self._known(budget)[1] for budget in config.ladder.budgets)
            meter.plan(phases.align_phases(config, len(self.samples)))
            stack.enter_context(frozen(self.pipe))
            if config.autocast is not None:
                stack.enter_context(torch.autocast(self.pipe.device.type, getattr(torch, config.autocast)))
            meter.phase(phases.FULL_RUNS)
            rungs = [self._aligned(rung) for rung in config.ladder]
            meter.finish(self.before - self.earlier)
        return Ladder.of(rungs)

    def _aligned(self, rung: Policy) -> Policy:
        """One rung, aligned; as it was if that did not help on the samples put aside."""
        from budcache.calibration.judge import Judge
        from budcache.refine.align import Descent

        config, joint = self.config, rung.is_blended
        setup = Setup(self.pipe, rung.steps, rung.reuse, 1, config.objective, config.teacher_steps, self.shelf)
        known, self.calls = self._known(rung.budget)
        self.earlier += self.calls
        taught = None if self.before else self.meter.spent  # the first rung's full runs are a phase of their own
        aside, seed = self.samples[self.learned_on :], config.seed + self.learned_on
        with setup.calibration(aside, seed, taught, whole=False) as kept_out:
            judge = Judge(kept_out)
            sigmas = rung.sigmas or tuple(kept_out.facts[0].sigmas.tolist())
            start = rung.model_copy(update={"sigmas": sigmas})
            descent = Descent(
                start,
                config.epochs * self.learned_on,
                rate=config.rate_for(joint),
                mean=config.mean_for(joint),
            )
            after = self._descend(setup, descent, judge, known)
            after = rung if after == start else after
            judge.forget()
            quality = judge.quality(rung, used_to_choose=True), judge.quality(after, used_to_choose=True)
            measured = quality[1].model_copy(update=judge.left_of(after))
            self.calls += judge.calls
        self.before += self.calls
        how = ("align, joint" if joint else "align") + (", kept as it was" if after is rung else "")
        line = Refined(how=how, prompts=len(self.samples), calls=self.calls, gain=gain(*quality))
        here = setup.about.origin
        found = refined(here, rung, after, line, measured, self.samples, config.teacher_steps, kept_out.levels)
        self.meter.tell(RungDone("align", found))
        return found

    def _descend(self, setup: Setup, descent: Descent, judge: Judge, known: list[_Known]) -> Policy:
        """All updates of one rung; the policy that was best on the samples put aside, the start among them."""
        levels = setup.finer_sigmas(self.samples[0])
        self.calls += levels is not None  # to open the pipeline costs a call
        best, first = descent.start, self._held_out(judge, descent.start, descent)
        lowest, budget = first, descent.start.budget
        if not self.before:
            self.meter.phase(phases.ALIGNING)
        for number in range(descent.updates):
            if number < len(known):
                update, held_out = known[number].update, known[number].held_out
                if number + 1 == len(known):
                    descent.resume(update)
            else:
                with self._lesson(setup, levels, *divmod(number, self.learned_on)) as lesson:
                    update = descent.update(number, lesson)
                look = number + 1 == descent.updates or (number + 1) % self.config.every == 0
                held_out = self._held_out(judge, descent.policy(update.parameters), descent) if look else None
                self._keep(budget, update, held_out, judge)
            if held_out is not None and held_out < lowest:
                best, lowest = descent.policy(update.parameters), held_out
            self.meter.tell(Updated(budget, number, update.loss, held_out, None if number else first))
            note = f"{budget} calls: update {number + 1} of {descent.updates}"
            spent = self.before + self.calls + judge.calls - self.earlier
            self.meter.spent(spent, part=self._part(budget, (number + 1) / descent.updates), best=lowest, note=note)
        return best

    def _part(self, budget: int, done: float) -> float:
        """How much of all updates is done, with so much of a rung's: they cost as much as their budgets are large."""
        budgets = self.config.ladder.budgets
        return (sum(b for b in budgets if b < budget) + done * budget) / sum(budgets)

    def _held_out(self, judge: Judge, policy: Policy, descent: Descent) -> float:
        """The loss on the samples put aside, by the mean that is learned by."""
        from budcache.aggregate import geometric_mean, mean

        judge.forget()
        return (mean if descent.mean == "arithmetic" else geometric_mean)(judge.losses(policy))

    @contextmanager
    def _lesson(self, setup: Setup, levels: Tensor | None, epoch: int, number: int) -> Iterator[Lesson]:
        """One sample's run, held open with gradients, and where its teacher ends."""
        from budcache.numerics.rollout import rollout
        from budcache.pipeline import PipelineModel
        from budcache.plan import Plan
        from budcache.refine.align import Lesson

        seed = self.config.seed + number + epoch * len(self.samples)
        sample = seeded(self.samples[number], seed)
        with PipelineModel(self.pipe, steps=setup.steps, reuse=setup.reuse, grad=True, **sample) as run:
            if (epoch, number) not in self.teachers:
                full = run.sigmas if levels is None else levels
                plan = Plan.of(Policy(mask=Mask.full(len(full) - 1)), full)
                self.teachers[epoch, number] = rollout(run, run.noise, plan, run.solver(levels))
            pixels = self.config.objective == "pixel"
            yield Lesson(run, self.teachers[epoch, number], run.decoded if pixels else None)
            self.calls += run.calls * len(run.noise)

    # The ledger: every update is written down, so that a killed alignment goes on behind the last one.

    def _keep(self, budget: int, update: Update, held_out: float | None, judge: Judge) -> None:
        if self.journal is not None:
            calls = self.calls + judge.calls
            if held_out is not None and not math.isfinite(held_out):
                held_out = None  # the policy overflows: not a number to write, and no better than not to have looked
            self.journal.write({"budget": budget, "calls": calls, "held_out": held_out, **asdict(update)})

    def _known(self, budget: int) -> tuple[list[_Known], int]:
        """The updates that earlier runs have written down for a budget, and the sample-calls that they spent."""
        updates, calls = [], 0
        for entry in self.journal.entries if self.journal is not None else ():
            try:
                if entry["budget"] == budget:
                    updates.append(_Known.read(entry))
                    calls = int(entry["calls"])
            except (ValueError, TypeError, KeyError):
                assert self.journal is not None
                raise self.journal.spoilt(entry) from None
        return updates, calls

    def _identity(self) -> dict[str, Any]:
        """What the updates in a ledger depend on."""
        config, ladder = self.config, self.config.ladder
        setup = Setup(self.pipe, ladder.steps, teacher_steps=config.teacher_steps)
        parts = {"mask", "reuse", "weights", "rows", "guided", "sigmas"}
        joint = [rung.is_blended for rung in ladder]
        return setup.origin(self.samples).model_dump(mode="json", exclude={"versions", "prompts"}) | {
            "budgets": list(ladder.budgets),
            "policies": [rung.model_dump(mode="json", include=parts) for rung in ladder],
            "samples learned on": self.learned_on,
            "objective": config.objective,
            "autocast": config.autocast,
            "seed": config.seed,
            "every": config.every,
            "epochs": config.epochs,
            "rate": [config.rate_for(each) for each in joint],
            "mean": [config.mean_for(each) for each in joint],
        }


@dataclass(frozen=True)
class _Known:
    """An update as an earlier run wrote it down."""

    update: Update
    held_out: float | None

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> _Known:
        from budcache.refine.align import Update

        mean, square = entry["moments"]
        moments = tuple(map(float, mean)), tuple(map(float, square))
        update = Update(int(entry["number"]), float(entry["loss"]), tuple(map(float, entry["parameters"])), moments)
        return cls(update, None if entry["held_out"] is None else float(entry["held_out"]))
