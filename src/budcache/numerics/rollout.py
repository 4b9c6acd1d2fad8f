"""The one sampling loop: equation 2 of the paper, for any plan, model and solver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from budcache.numerics.features import sample_weights
from budcache.numerics.model import Model
from budcache.numerics.solvers import Solver, euler, first_order
from budcache.plan import Blend, Plan, Stretch

__all__ = ["State", "blended", "coast", "compute", "ended", "landed", "levels_of", "reuse", "rollout"]


@dataclass(frozen=True)
class State:
    """All that the rest of a run depends on. Plans that agree so far share it."""

    x: Tensor
    step: int = 0
    outputs: tuple[Tensor, ...] = ()  # newest first
    branch: tuple[Tensor, ...] = ()  # likewise of the conditional branch alone, where the model tells them apart
    memo: Any = None  # what the last computed step left behind, for residual reuse
    past: Any = None  # the solver's
    start: Tensor | None = None  # where the run began: the initial noise


def rollout(model: Model, x: Tensor, plan: Plan, solver: Solver = euler) -> Tensor:
    """Integrate from noise to data as a plan says.

    Args:
        model: the velocity field.
        x: noise, shape [N, ...].
        plan: the noise levels, and for each computed step how to go on from it.
        solver: one step of an ODE solver.

    Returns:
        The sample at the last level, shape [N, ...].
    """
    state, levels = State(x, plan.begin, start=x), levels_of(plan)
    moves = first_order(solver, levels, x.device) if plan.is_linear else ()
    for stretch in plan:
        stretch = stretch.on(moves) if stretch.noise is not None else stretch
        state = compute(model, state, levels, plan.outputs)
        state = ended(reuse(model, state, stretch, levels, solver, plan.reuse == "residual"))
    return state.x


def compute(model: Model, state: State, levels: Tensor, keep: int = 1) -> State:
    """Evaluate the model where the run is; the newest `keep` outputs are kept."""
    v, memo = model.compute(state.x, levels[state.step])
    conditional = getattr(model, "conditional", None)
    branch = state.branch if conditional is None else (conditional, *state.branch)[:keep]
    return replace(state, outputs=(v, *state.outputs)[:keep], branch=branch, memo=memo)


def reuse(
    model: Model, state: State, stretch: Stretch, levels: Tensor, solver: Solver, residual: bool = False
) -> Iterator[State]:
    """Follow a stretch from the step that was just computed to its end: the state after each of its steps.

    One at a time: those of a long video would not fit into memory together.
    """
    if stretch.noise is not None:
        assert state.start is not None
        x = landed(state.x, state.outputs, state.start, stretch, state.branch)
        yield replace(state, x=x, step=stretch.end, past=None)
        return
    v = blended(state.outputs, stretch.blend)
    if not residual:
        yield from coast(state, v, stretch.end, levels, solver)
        return
    for k in range(stretch.step, stretch.end):
        v = v if k == stretch.step else model.reuse(state.x, levels[k], state.memo)
        state = ended(coast(state, v, k + 1, levels, solver))
        yield state


def coast(state: State, v: Tensor, end: int, levels: Tensor, solver: Solver) -> Iterator[State]:
    """Let the solver go on with one velocity: the state after each step up to `end`."""
    for k in range(state.step, end):
        x, past = solver(state.x, v, levels[k], levels[k + 1], state.past)
        state = replace(state, x=x, past=past, step=k + 1)
        yield state


def ended(states: Iterator[State]) -> State:
    """The last of some states; no two of them are held at a time."""
    return deque(states, maxlen=1)[0]


def landed(
    x: Tensor, outputs: Sequence[Tensor], start: Tensor, stretch: Stretch, branch: Sequence[Tensor] = ()
) -> Tensor:
    """Where a stretch ends that goes by a row (F13)."""
    assert stretch.blend is not None and stretch.noise is not None
    exact = torch.promote_types(x.dtype, torch.float32)  # half precision would lose what the weights gain
    blend, apart = stretch.blend, stretch.branch
    noise: float | Tensor = stretch.noise
    if stretch.features is not None:
        weights = sample_weights((*blend, *apart, stretch.noise), stretch.features, outputs)
        each = weights.T.reshape(-1, len(x), *[1] * (x.ndim - 1))  # one weight a sample
        blend, apart, noise = each[: len(blend)], each[len(blend) : -1], each[-1]
    total = blended([v.to(exact) for v in outputs], blend)
    for weight, output in zip(apart, branch, strict=False):
        total = total + weight * output.to(exact)
    end = stretch.keep * x.to(exact) + stretch.push * total + noise * start.to(exact)
    return end.to(outputs[0].dtype)


def blended(outputs: Sequence[Tensor], blend: Blend | None) -> Tensor:
    """What the solver goes on with: the newest output, or the weighted sum of the newest few."""
    if blend is None:
        return outputs[0]
    total: Tensor = blend[0] * outputs[0]
    for weight, output in zip(blend[1:], outputs[1:], strict=False):
        total = total + weight * output
    return total


def levels_of(plan: Plan) -> Tensor:
    """A plan's noise levels as a tensor, shape [K + 1]; with their gradient where they have one."""
    return plan.levels if isinstance(plan.levels, Tensor) else torch.tensor(plan.levels, dtype=torch.float32)
