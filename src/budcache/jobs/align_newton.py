"""Alignment without gradients (F14) on a pipeline: for `budcache.align` and for searches that refine in full."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from budcache.aggregate import Care, cared_for, mean
from budcache.events import RungDone, Updated
from budcache.jobs import estimate as phases
from budcache.jobs.config import AlignConfig
from budcache.jobs.meter import Meter
from budcache.jobs.refining import gain, refined
from budcache.jobs.setup import Setup
from budcache.policy import Ladder, Policy, Quality, Refined
from budcache.storage.journal import Journal

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration.asking import Asked
    from budcache.calibration.judge import Judge
    from budcache.numerics.shelf import Shelf
    from budcache.refine.equations import Equations

__all__ = ["Newton", "NewtonAlignment"]


@dataclass
class Newton:
    """Aligns policies on samples, and keeps what every run said in a journal.

    Args:
        known: the samples to align on.
        judge: samples put aside, which have the last word; None lets those aligned on decide.
        care: what counts of the samples' errors.
        journal: where the runs' equations are kept, if anywhere.
        told: called after each run with how much of a policy's alignment is done, from 0 to 1.
        tell: called with every length of a step that is tried.
        spent: the sample-calls of the whole job so far, for the journal.

    Attributes:
        earlier: sample-calls that runs before this one had spent on what the journal knew.
    """

    known: Asked
    judge: Judge | None
    care: Care = "typical"
    journal: Journal | None = None
    told: Callable[[float], None] = lambda part: None
    tell: Callable[[Updated], None] = lambda event: None
    spent: Callable[[], int] = lambda: 0
    earlier: int = field(default=0, init=False)

    def aligned(self, policy: Policy) -> Policy:
        """A policy after one Gauss-Newton step; as it was where that does not help."""
        from budcache.refine.newton import STEPS, GaussNewton

        newton, runs = GaussNewton(policy, self.known), len(self.known.facts)
        kept = _kept(self.journal, policy)
        self.earlier += sum(calls for _, calls in kept.values())
        found = {number: equations for number, (equations, _) in kept.items()}
        self.told(len(found) / (runs + 1))
        missing = [number for number in range(runs) if number not in found]
        for number, equations, calls in self.known.each(newton.question, missing):
            self._keep(policy, number, equations, calls)
            found[number] = equations
            self.told(len(found) / (runs + 1))
        in_order = [found[number] for number in range(runs)]
        steps = [newton.stepped(in_order, length) for length in STEPS]
        return self._searched(policy, steps)

    def _searched(self, start: Policy, steps: Sequence[Policy]) -> Policy:
        """The line search: the best of some steps on all samples; none that is worse on those put aside counts."""
        from budcache.calibration.judge import Judge

        own = Judge(self.known, care=self.care)

        def losses(policy: Policy) -> tuple[float, tuple[float, ...], float]:
            """On all samples, those of the samples aligned on, and on those put aside."""
            own.forget()
            here = own.losses(policy)
            there = () if self.judge is None else self.judge.losses(policy)
            held_out = cared_for(there, self.care) if there else 0.0
            return cared_for((*here, *there), self.care), here, held_out

        best, first = start, losses(start)
        lowest = first[0]
        for number, step in enumerate(steps):
            of_all, here, there = losses(step)
            self.tell(Updated(start.budget, number, cared_for(here, self.care), there or None, first[2] or None))
            if of_all < lowest and there <= first[2]:
                quality = Quality(calibration_loss=mean(here))
                best, lowest = step.model_copy(update={"quality": quality}), of_all
            elif best is not start:
                break  # the shorter, the worse again
        own.forget()
        return best

    def _keep(self, policy: Policy, number: int, equations: Equations, own: int) -> None:
        if self.journal is not None:
            parts = {name: _text(getattr(equations, name)) for name in ("gram", "right", "square")}
            calls = {"calls": self.spent(), "own_calls": own}
            self.journal.write({"newton": _name(policy), "run": number, **calls, **parts})


@dataclass
class NewtonAlignment:
    """The alignment of a ladder, rung by rung; they share their full runs."""

    pipe: Any
    config: AlignConfig
    samples: Sequence[Mapping[str, Any]]
    learned_on: int
    shelf: Shelf | None = None
    journal: Journal | None = field(default=None, init=False)

    def run(self, ledger: str | os.PathLike[str] | None, meter: Meter) -> Ladder:
        """Align every rung, and measure what it was worth."""
        from budcache.calibration.judge import Judge

        config, samples = self.config, self.samples
        steps, finer = config.ladder.steps, config.teacher_steps
        setup = Setup(self.pipe, steps, "output", config.batch, teacher_steps=finer, shelf=self.shelf)
        with ExitStack() as stack:
            if ledger is not None:
                self.journal = Journal(ledger, self._identity(setup), of="alignment")
                stack.callback(self.journal.close)
            here = setup.about.origin
            meter.plan(phases.align_phases(config, len(samples)))
            meter.phase(phases.FULL_RUNS)
            learned_on, aside = samples[: self.learned_on], samples[self.learned_on :]
            known = stack.enter_context(setup.calibration(learned_on, config.seed, meter.spent, whole=False))
            held_out = setup.calibration(aside, config.seed + self.learned_on, whole=False)
            judge = Judge(stack.enter_context(held_out))
            meter.phase(phases.ALIGNING)
            rungs: list[Policy] = []
            for rung in config.ladder:
                before = known.calls + judge.calls if rungs else 0  # the first rung pays for the full runs
                judge.forget()
                part = self._parts(rung)

                def told(done: float, part: tuple[float, float] = part, budget: int = rung.budget) -> None:
                    meter.spent(known.calls + judge.calls, part=part[0] + done * part[1], note=f"{budget} calls")

                newton = Newton(known, judge, "typical", self.journal, told, meter.tell)
                after = newton.aligned(rung)
                quality = judge.quality(rung, used_to_choose=True), judge.quality(after, used_to_choose=True)
                measured = quality[1].model_copy(update=judge.left_of(after))
                told(1.0)
                how = "align" + (", kept as it was" if after is rung else "")
                calls = known.calls + judge.calls - before + newton.earlier
                line = Refined(how=how, prompts=len(samples), calls=calls, gain=gain(*quality))
                rungs.append(refined(here, rung, after, line, measured, samples, config.teacher_steps, known.levels))
                meter.tell(RungDone("align", rungs[-1]))
            meter.finish(known.calls + judge.calls)
        return Ladder.of(rungs)

    def _parts(self, rung: Policy) -> tuple[float, float]:
        """How much of all the work is done before a rung, and how much of it is the rung's."""
        costs = {each.budget: phases.equation_calls(each) for each in self.config.ladder}
        whole = max(sum(costs.values()), 1)
        return sum(cost for budget, cost in costs.items() if budget < rung.budget) / whole, costs[rung.budget] / whole

    def _identity(self, setup: Setup) -> dict[str, Any]:
        """What the equations in a ledger depend on, beside the policies, which each line names."""
        return setup.origin(self.samples).model_dump(mode="json", exclude={"versions", "prompts"}) | {
            "method": "gauss-newton",
            "number format": setup.about.number_format,
            "steps": setup.steps,
            "batch": setup.batch,
            "samples learned on": self.learned_on,
            "seed": self.config.seed,
        }


def _name(policy: Policy) -> str:
    """A few characters that stand for what a policy does."""
    text = policy.model_dump_json(include={"mask", "weights", "rows", "guided", "sigmas"})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept(journal: Journal | None, policy: Policy) -> dict[int, tuple[Equations, int]]:
    """What earlier runs of the same work have written down of a policy, and the sample-calls that each took."""
    from budcache.refine.equations import Equations

    found: dict[int, tuple[Equations, int]] = {}
    for entry in journal.entries if journal is not None else ():
        if entry.get("newton") != _name(policy):
            continue
        try:
            square, right, gram = (_numbers(entry[name]) for name in ("square", "right", "gram"))
            shape = len(square), len(right) // len(square)
            equations = Equations(gram.reshape(*shape, shape[1]), right.reshape(shape), square)
            found[int(entry["run"])] = equations, int(entry["own_calls"])
        except (ValueError, TypeError, KeyError, RuntimeError, ZeroDivisionError):
            assert journal is not None
            raise journal.spoilt(entry) from None
    return found


def _text(values: Tensor) -> str:
    """Numbers to the last bit, shorter than as decimals."""
    return base64.b64encode(values.double().contiguous().numpy().tobytes()).decode()


def _numbers(text: str) -> Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.frombuffer(base64.b64decode(text, validate=True), dtype=np.float64).copy())
