"""The one sampling loop: equation 2 of the paper, over any model, mask, solver and schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from budcache.errors import PolicyError
from budcache.mask import Mask
from budcache.numerics.model import Model
from budcache.numerics.solvers import Solver, euler

__all__ = ["State", "Weights", "advance", "blend", "rollout"]

Weights = Sequence[Sequence[float] | Tensor]


@dataclass(frozen=True)
class State:
    """All that the rest of a run depends on. Masks that agree so far share it."""

    x: Tensor
    step: int = 0
    computed: int = 0  # computed steps so far
    memo: Any = None  # what the last computed step left behind
    past: Any = None  # the solver's
    outputs: tuple[Tensor, ...] = ()  # newest first; kept only where they are blended


def rollout(
    model: Model,
    x: Tensor,
    sigmas: Tensor,
    mask: Mask,
    solver: Solver = euler,
    weights: Weights | None = None,
    begin: int = 0,
) -> Tensor:
    """Integrate from noise to data, computing only where `mask` says so.

    Args:
        model: the velocity field.
        x: noise, shape [N, ...].
        sigmas: falling noise levels, shape [K + 1].
        mask: K decisions.
        solver: one step of an ODE solver.
        weights: per computed step, the weights of the newest output and those before it; None repeats the newest.
        begin: the step to start from, computed in any case; not 0 only for image-to-image.

    Returns:
        The sample at `sigmas[-1]`, shape [N, ...].
    """
    if begin and weights is not None:
        raise PolicyError(
            f"blend weights are for whole runs, but this one begins at step {begin}. Begin at 0, or leave them out."
        )
    state = State(x, step=begin)
    for k in range(begin, len(mask)):
        state = advance(model, state, sigmas, mask[k] or k == begin, solver, weights)
    return state.x


def advance(
    model: Model, state: State, sigmas: Tensor, compute: bool, solver: Solver = euler, weights: Weights | None = None
) -> State:
    """One step of equation 2: compute or reuse the velocity, then let the solver move."""
    here, there = sigmas[state.step], sigmas[state.step + 1]
    if compute:
        v, memo = model.compute(state.x, here)
        state = replace(state, memo=memo, computed=state.computed + 1)
        if weights is not None:
            outputs = (v, *state.outputs)[: max(map(len, weights))]
            v = blend(outputs, weights[state.computed - 1])
            state = replace(state, memo=v, outputs=outputs)
    else:
        v = model.reuse(state.x, here, state.memo)
    x, past = solver(state.x, v, here, there, state.past)
    return replace(state, x=x, past=past, step=state.step + 1)


def blend(outputs: Sequence[Tensor], weights: Sequence[float] | Tensor) -> Tensor:
    """The weighted sum of the newest outputs; a single weight of 1 gives the newest itself, bit for bit."""
    total = weights[0] * outputs[0]
    for weight, output in zip(weights[1:], outputs[1:], strict=False):
        total = total + weight * output
    return total
