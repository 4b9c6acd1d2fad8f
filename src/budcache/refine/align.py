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
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from budcache.calibration.calibration import TINY, Run
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.numerics.rollout import rollout
from budcache.numerics.sigmas import monotone

__all__ = ["Aligned", "Learned", "Lesson", "Mean", "Update", "align", "check_pace", "student"]

Mean = Literal["arithmetic", "geometric"]


@dataclass(frozen=True)
class Learned:
    """What is learned, as values: noise levels, and blend weights if there are any."""

    sigmas: tuple[float, ...]
    weights: tuple[tuple[float, ...], ...] | None = None


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
    held_out: float | None = None  # after the step, where it was measured
    start: float | None = None  # the held-out loss before the first step, which tells of it


@dataclass
class Aligned:
    """The best that was met, by held-out loss, and how it came about."""

    best: Learned
    start_loss: float
    best_loss: float
    updates: list[Update] = field(default_factory=list)


def align(
    start: Learned,
    mask: Mask,
    lessons: Sequence[Callable[[], AbstractContextManager[Lesson]]],
    held_out: Callable[[Learned], float],
    *,
    rate: float = 1e-3,
    every: int = 10,
    mean: Mean = "arithmetic",
    known: Sequence[Update] = (),
    watch: Callable[[Update], None] | None = None,
) -> Aligned:
    """Learn noise levels (and blend weights, if `start` has some) for a mask, one update per lesson.

    Args:
        start: where to begin: the reference schedule, which is met exactly before the first update.
        mask: which steps are computed.
        lessons: opened one at a time, in this order; the learning rate falls along a cosine over them.
        held_out: the loss on other samples; the best is kept by it, and the start counts.
        rate: AdamW's learning rate at the beginning; there is no weight decay.
        every: after how many updates to look at the held-out loss; the last one is looked at in any case.
        mean: of the lessons' errors, what is to become small; `held_out` should be of the same kind.
        known: the updates of an earlier, interrupted run with the same arguments: it goes on behind them.
        watch: called with every update.
    """
    if not lessons:
        raise SearchError("there are no samples to align on. Give some prompts; the paper takes 100.")
    check_pace(rate, every)
    space = _Space(start, mask)
    optimiser = torch.optim.AdamW([space.parameters], lr=rate, weight_decay=0.0)
    start_loss = held_out(start)
    aligned = Aligned(start, start_loss, start_loss)

    def keep(update: Update) -> None:
        aligned.updates.append(update)
        if update.held_out is not None and update.held_out < aligned.best_loss:
            aligned.best, aligned.best_loss = space.at(update.parameters), update.held_out

    for update in known:
        keep(update)
    if known:
        _restore(optimiser, space.parameters, known[-1])
    for number in range(len(known), len(lessons)):
        for group in optimiser.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * number / len(lessons)))
        optimiser.zero_grad()
        sigmas, weights = space.tensors(space.parameters)
        with lessons[number]() as lesson:
            loss = lesson.loss(student(lesson.run, mask, sigmas, weights))
            if not torch.isfinite(loss):
                raise SearchError(
                    f"the loss of update {number} is {float(loss.detach())}. Use a smaller learning rate than "
                    f"{rate:g}, or float32 or bfloat16 for the model."
                )
            (loss if mean == "arithmetic" else loss.clamp(min=TINY).log()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        now, moments = _saved(optimiser, space.parameters)
        look = number + 1 == len(lessons) or (number + 1) % every == 0
        seen = held_out(space.at(now)) if look else None
        update = Update(number, float(loss.detach()), now, moments, seen, None if number else start_loss)
        keep(update)
        if watch is not None:
            watch(update)
    return aligned


def check_pace(rate: float, every: int) -> None:
    """Refuse a learning rate or a rhythm that cannot be."""
    if not (rate > 0 and math.isfinite(rate)):
        raise SearchError(f"a learning rate of {rate:g} learns nothing. Choose one above 0; the paper's is 0.001.")
    if every < 1:
        raise SearchError(f"the held-out loss cannot be looked at every {every} updates. Choose at least 1.")


def student(run: Run, mask: Mask, sigmas: Tensor, weights: Sequence[Tensor] | None = None) -> Tensor:
    """The cached sampler on given levels, differentiable in them and in the weights; each call is checkpointed."""
    return rollout(_Checkpointed(run), run.noise, sigmas, mask, run.solver(sigmas), weights)


class _Space:
    """The numbers that are learned, and what they stand for: logits of the gaps between levels, then the weights.

    The levels fall and their ends stay whatever the logits are; at zero they are those of the start, to the last bit.
    """

    def __init__(self, start: Learned, mask: Mask) -> None:
        rows = start.weights or ()
        self.steps, self.sizes = len(mask), [len(row) for row in rows]
        values = [0.0] * self.steps + [value for row in rows for value in row]
        self.parameters = torch.tensor(values, dtype=torch.float64, requires_grad=True)
        self.reference = torch.tensor(start.sigmas, dtype=torch.float64)

    def tensors(self, parameters: Tensor) -> tuple[Tensor, list[Tensor] | None]:
        """Levels and weights, differentiable in the parameters."""
        logits, weights = parameters[: self.steps], parameters[self.steps :]
        rows = list(torch.split(weights, self.sizes)) if self.sizes else None
        return monotone(self.reference, logits), rows

    def at(self, parameters: Sequence[float]) -> Learned:
        """What given parameters stand for."""
        sigmas, rows = self.tensors(torch.tensor(parameters, dtype=torch.float64))
        return Learned(tuple(sigmas.tolist()), None if rows is None else tuple(tuple(row.tolist()) for row in rows))


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


def _saved(
    optimiser: torch.optim.Optimizer, parameters: Tensor
) -> tuple[tuple[float, ...], tuple[tuple[float, ...], tuple[float, ...]]]:
    state = optimiser.state[parameters]
    return tuple(parameters.tolist()), (tuple(state["exp_avg"].tolist()), tuple(state["exp_avg_sq"].tolist()))


def _restore(optimiser: torch.optim.Optimizer, parameters: Tensor, update: Update) -> None:
    with torch.no_grad():
        parameters.copy_(torch.tensor(update.parameters, dtype=torch.float64))
    mean, square = (torch.tensor(values, dtype=torch.float64) for values in update.moments)
    optimiser.state[parameters] = {
        "step": torch.tensor(float(update.number + 1)),
        "exp_avg": mean,
        "exp_avg_sq": square,
    }
