"""Listening to a pipeline's networks: when they are really called and at which time, beside what the plan says."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
from torch import Tensor

from budcache.pipeline.parts import bare, denoisers
from budcache.pipeline.trunk import blocks_of
from budcache.plan import Plan
from budcache.policy import Policy

__all__ = ["Heard", "heard", "steps_in"]

NEAR = 1e-3  # relative: how near a time has to be to the one that own noise levels stand for


@contextmanager
def heard(pipe: Any, trunk: bool = False) -> Iterator[list[float]]:
    """The times at which a pipeline's networks are called for the length of a `with` block, one for each evaluation.

    Args:
        pipe: the pipeline.
        trunk: listen to the first block of the trunk instead, which residual reuse skips.
    """
    times: list[float] = []
    with ExitStack() as undo:
        for module in denoisers(pipe).values():
            last = _Last()
            undo.callback(module.register_forward_pre_hook(last, with_kwargs=True).remove)
            listener = _Listener(last, times)
            listened = blocks_of(bare(module))[0] if trunk else module
            undo.callback(listened.register_forward_pre_hook(listener).remove)
        yield times


def steps_in(times: list[float]) -> list[list[float]]:
    """The evaluations of each step of a full run: guidance may take two, at the same time."""
    return [list(group) for _, group in groupby(times)]


class _Last:
    """A hook that keeps the time that a network was called with last."""

    time = float("nan")

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = next((kwargs[name] for name in ("timestep", "timesteps", "t") if name in kwargs), None)
        if found is None and len(args) > 1:  # UNets and others take the sample first, then the time
            found = args[1]
        value = found.detach().flatten()[:1].tolist()[0] if isinstance(found, Tensor) and found.numel() else found
        self.time = float(value) if isinstance(value, int | float) else float("nan")


class _Listener:
    """A hook that writes down the time of a call."""

    def __init__(self, last: _Last, times: list[float]) -> None:
        self.last, self.times = last, times

    def __call__(self, *_: Any) -> None:
        self.times.append(self.last.time)


@dataclass(frozen=True)
class Heard:
    """What the networks were really asked for in a run, beside what the plan says."""

    calls: int
    full_calls: int
    steps: int | None  # of the full run, as heard; None if they cannot be told apart
    computed: tuple[int, ...]
    whole: bool  # whether every call had all its evaluations, and none came on top
    followed: bool | None

    @property
    def expected(self) -> int:
        """The calls that the plan makes."""
        return len(self.computed)

    @classmethod
    def of(
        cls,
        policy: Policy,
        steps: Sequence[Sequence[float]],
        times: Sequence[float],
        grid: Sequence[float],
        inner: Sequence[float],
        counted: int,
    ) -> Heard:
        """Compare what was heard.

        Args:
            policy: the policy.
            steps: the times of the full run's evaluations, step by step.
            times: those of the served run.
            grid: the full run's timesteps.
            inner: those that the policy's noise levels stand for.
            counted: the calls that the scheduler has counted.
        """
        begin = max(0, policy.steps - len(steps))  # image-to-image may start midway
        computed = Plan.of(policy, (), begin).computed
        if not 0 < len(steps) <= policy.steps or any(map(math.isnan, chain(times, *steps))):
            return cls(counted, policy.steps, None, computed, False, None)
        awaited = [(k, value) for k in computed for value in steps[k - begin]]
        whole = len(times) == len(awaited)
        followed = whole
        if policy.sigmas is None:
            followed = list(times) == [value for _, value in awaited]
        elif whole and len(inner) == len(grid) == policy.steps:
            firsts = [group[0] for group in steps]
            order = np.argsort(grid[begin:])
            there = np.asarray(grid[begin:])[order], np.asarray(firsts)[order]
            where = np.interp([inner[k] for k, _ in awaited], *there)
            room = NEAR * max(map(abs, firsts))
            followed = bool(np.all(np.abs(np.asarray(times) - where) <= room))
        per_call = len(awaited) / len(computed)
        calls = counted if whole else round(len(times) / per_call)
        return cls(calls, len(steps), len(steps), computed, whole, followed)
