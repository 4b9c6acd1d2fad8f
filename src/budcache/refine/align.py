"""Schedule alignment: Algorithm 3 of the paper.

With the mask fixed, the noise levels are learned by gradient descent through the cached sampler, so that its final
output comes near to the teacher's, the full solver's on the reference schedule. Blend weights can be learned with them,
from where the closed form left them.

The paper minimises the samples' mean error, in which the few that turn into another picture outweigh all others. Their
geometric mean lets each count relative to its own error; it is what the mean PSNR measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from budcache.aggregate import TINY
from budcache.calibration.objectives import Run
from budcache.errors import SearchError
from budcache.numerics.rollout import levels_of, rollout
from budcache.numerics.sigmas import monotone
from budcache.plan import Plan
from budcache.policy import Policy

__all__ = ["Descent", "Lesson", "Mean", "Update", "check_pace", "student"]

Mean = Literal["arithmetic", "geometric"]


@dataclass(frozen=True)
class Lesson:
    """One sample, or batch of samples, to learn from: a differentiable run, and where its teacher ended."""

    run: Run
    teacher: Tensor
    decoded: Callable[[Tensor], Tensor] | None = None  # what is compared: pictures instead of latents

    def loss(self, output: Tensor) -> Tensor:
        """The mean squared error of the student's final output."""
        pair = (output, self.teacher) if self.decoded is None else (self.decoded(output), self.decoded(self.teacher))
        return (pair[0].double() - pair[1].double()).square().mean()


@dataclass(frozen=True)
class Update:
    """One step of the optimiser, and all that is needed to go on from there."""

    number: int
    loss: float  # of the lesson, before the step
    parameters: tuple[float, ...]
    moments: tuple[tuple[float, ...], tuple[float, ...]]  # AdamW's


def check_pace(rate: float, every: int) -> None:
    """Validate the learning rate and the interval between looks at the held-out loss."""
    if not (rate > 0 and math.isfinite(rate)):
        raise SearchError(f"a learning rate of {rate:g} learns nothing. Choose one above 0; the paper's is 0.001.")
    if every < 1:
        raise SearchError(f"the held-out loss cannot be looked at every {every} updates. Choose at least 1.")


class Descent:
    """A policy's noise levels, and its blend weights if it has some, on their way to a smaller loss.

    What is learned are the logits of the gaps between levels, then the weights. The levels fall and their ends stay
    whatever the logits are; at zero they are those of the start, to the last bit.

    Args:
        start: where to begin; its sigmas are the reference schedule.
        updates: how many there will be: the learning rate falls along a cosine over them.
        rate: AdamW's learning rate at the beginning; there is no weight decay.
        mean: which mean of the lessons' errors is made small.
    """

    def __init__(self, start: Policy, updates: int, *, rate: float = 1e-3, mean: Mean = "arithmetic") -> None:
        check_pace(rate, 1)
        if start.sigmas is None:
            raise SearchError("aligning begins at a reference schedule. Give the policy the pipeline's own sigmas.")
        if updates < 1:
            raise SearchError("there are no samples to align on. Give some prompts; the paper takes 100.")
        self.start, self.updates, self.rate, self.mean = start, updates, rate, mean
        rows = start.weights or tuple(row.outputs for row in start.rows or ())
        self._sizes = [len(row) for row in rows]
        values = [0.0] * start.steps + [value for row in rows for value in row]
        self._parameters = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        self._reference = torch.tensor(start.sigmas, dtype=torch.float64)
        self._optimiser = torch.optim.AdamW([self._parameters], lr=rate, weight_decay=0.0)

    def update(self, number: int, lesson: Lesson) -> Update:
        """Learn from one lesson."""
        for group in self._optimiser.param_groups:
            group["lr"] = self.rate * 0.5 * (1 + math.cos(math.pi * number / self.updates))
        self._optimiser.zero_grad()
        loss = lesson.loss(student(lesson.run, self._plan()))
        if not torch.isfinite(loss):
            raise SearchError(
                f"the loss of update {number} is {float(loss.detach())}. Use a smaller learning rate than "
                f"{self.rate:g}, or float32 or bfloat16 for the model."
            )
        (loss if self.mean == "arithmetic" else loss.clamp(min=TINY).log()).backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        state = self._optimiser.state[self._parameters]
        moments = tuple(state["exp_avg"].tolist()), tuple(state["exp_avg_sq"].tolist())
        return Update(number, float(loss.detach()), tuple(self._parameters.tolist()), moments)

    def resume(self, update: Update) -> None:
        """Go on behind an update of an earlier, interrupted run."""
        with torch.no_grad():
            self._parameters.copy_(torch.tensor(update.parameters, dtype=torch.float64))
        mean, square = (torch.tensor(values, dtype=torch.float64) for values in update.moments)
        self._optimiser.state[self._parameters] = {
            "step": torch.tensor(float(update.number + 1)),
            "exp_avg": mean,
            "exp_avg_sq": square,
        }

    def policy(self, parameters: Sequence[float]) -> Policy:
        """The policy that given parameters stand for."""
        sigmas, blends = self._numbers(torch.tensor(parameters, dtype=torch.float64))
        # Its quality is yet to be measured, and rows for guidance apart belong to other levels.
        changed: dict[str, Any] = {"sigmas": tuple(sigmas.tolist()), "quality": None, "guided": None}
        learned = [tuple(blend.tolist()) for blend in blends or ()]
        if self.start.weights is not None:
            changed["weights"] = learned
        elif self.start.rows is not None:
            pairs = zip(self.start.rows, learned, strict=True)
            changed["rows"] = [row.model_copy(update={"outputs": outputs}) for row, outputs in pairs]
        return self.start.model_copy(update=changed)

    def _plan(self) -> Plan:
        """The plan with numbers that are differentiable in the parameters."""
        sigmas, rows = self._numbers(self._parameters)
        plan = Plan.of(self.start, sigmas)
        if rows is None:
            return plan
        stretches = [replace(stretch, blend=row) for stretch, row in zip(plan, rows, strict=True)]
        return replace(plan, stretches=tuple(stretches))

    def _numbers(self, parameters: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """Levels and weights, differentiable in the parameters."""
        logits, weights = parameters[: self.start.steps], parameters[self.start.steps :]
        rows = list(torch.split(weights, self._sizes)) if self._sizes else None
        return monotone(self._reference, logits), rows


def student(run: Run, plan: Plan) -> Tensor:
    """The cached sampler, differentiable in the plan's numbers; each model call is checkpointed."""
    return rollout(_Checkpointed(run), run.noise, plan, run.solver(levels_of(plan)))


class _Checkpointed:
    """A run whose evaluations keep nothing but their inputs, and are made once more when gradients are wanted."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def compute(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, Any]:
        """As the run's; what a memo holds besides the output itself has no gradient, as in the authors' code."""
        memos: list[Any] = []

        def call(x: Tensor, sigma: Tensor) -> Tensor:
            v, memo = self.run.compute(x, sigma)
            memos[:] = [memo]
            return v

        v: Tensor = _Again.apply(call, x, sigma)  # type: ignore[no-untyped-call]
        memo = memos.pop()  # left in there, the record of `v` would hold itself and the run for ever
        return v, v if isinstance(memo, Tensor) else {key: value.detach() for key, value in memo.items()}

    def reuse(self, x: Tensor, sigma: Tensor, memo: Any) -> Tensor:
        """As the run's: the output itself, or a fresh embedder and head around what the memo holds."""
        if isinstance(memo, Tensor):
            return memo
        v: Tensor = _Again.apply(lambda x, sigma: self.run.reuse(x, sigma, memo), x, sigma)  # type: ignore[no-untyped-call]
        return v


class _Again(torch.autograd.Function):
    """Evaluate without a record; on the way back evaluate again with one.

    torch's own checkpointing turns recording off and on for the calling thread, but a pipeline's model runs in another.
    """

    @staticmethod
    def forward(ctx: Any, call: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigma: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(x, sigma)
        return call(x, sigma)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor | None, Tensor | None]:
        x, sigma = (value.detach() for value in ctx.saved_tensors)
        wanted = [
            value.requires_grad_() for value, need in zip((x, sigma), ctx.needs_input_grad[1:], strict=True) if need
        ]
        with torch.enable_grad():
            v = ctx.call(x, sigma)
        if not v.requires_grad:  # a pipeline that takes the time as a bare number, at a point that is fixed
            return None, None, None
        found = iter(torch.autograd.grad(v, wanted, gradient, allow_unused=True))
        by_x, by_sigma = (next(found) if need else None for need in ctx.needs_input_grad[1:])
        return None, by_x, by_sigma
