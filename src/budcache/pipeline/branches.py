"""Guidance apart: what the conditional branch alone gives, where a pipeline evaluates its network for two (F12).

A pipeline combines the branches before its scheduler sees anything: `v = u + s (c - u)`. We listen at the network, by a
forward hook, and keep c; together with v that is all there is to know. No branch is ever skipped, and nothing that the
pipeline computes changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from budcache.pipeline.parts import denoisers

__all__ = ["Branches"]


class Branches:
    """Listens to a pipeline's networks during the runs of one thread.

    Args:
        pipe: the pipeline. What it combines may come from two calls a step, or from one of two halves.
    """

    def __init__(self, pipe: Any) -> None:
        self._heard: list[Tensor] = []
        self._thread: int | None = None
        self._which: tuple[int, float] | None = None  # which branch is the conditional one, and its sign
        # This object itself is the hook, so that copied and pickled pipelines take it along.
        self._handles = [
            _Around.of(part, self) or part.register_forward_hook(self) for part in denoisers(pipe).values()
        ]

    def begin(self) -> None:
        """A run begins, in this thread."""
        self._heard, self._which, self._thread = [], None, threading.get_ident()

    def take(self, v: Tensor, first: bool) -> Tensor | None:
        """What the conditional branch gave at the step whose combined output is v; None where it is not known apart.

        At the first step of a run it is decided which branch that is: guidance goes beyond it, away from the other, so
        it is the nearer one. Some pipelines turn the sign of what their network gives.
        """
        parts, self._heard = _parts(self._heard, v), []
        if first:
            self._which = _nearer(parts, v) if len(parts) == 2 else None
        if self._which is None or not parts or len(parts) > 2:
            return None
        place, sign = self._which
        found = parts[place if len(parts) == 2 else 0]  # guidance may end before the run does
        return sign * found.to(v.dtype).reshape(v.shape)

    def rest(self) -> None:
        """The run is over."""
        self._heard, self._thread = [], None

    def remove(self) -> None:
        """Leave the networks as they were."""
        self.rest()
        while self._handles:
            self._handles.pop().remove()

    def __call__(self, network: nn.Module, args: Any, output: Any) -> None:
        """The hook: a network has given something."""
        if self._thread == threading.get_ident():
            self._heard.append(_tensor(output))


class _Around:
    """Stands around a network that was compiled in place: a hook would be compiled, too."""

    def __init__(
        self, network: nn.Module, compiled: Callable[..., Any], hook: Callable[[nn.Module, Any, Any], None]
    ) -> None:
        self.network, self.compiled, self.hook = network, compiled, hook

    @classmethod
    def of(cls, network: nn.Module, hook: Callable[[nn.Module, Any, Any], None]) -> _Around | None:
        """Around a network, if it was compiled in place."""
        compiled = getattr(network, "_compiled_call_impl", None)
        if compiled is None:
            return None
        network._compiled_call_impl = around = cls(network, compiled, hook)
        return around

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        output = self.compiled(*args, **kwargs)
        self.hook(self.network, args, output)
        return output

    def remove(self) -> None:
        """Leave the network as it was."""
        if self.network._compiled_call_impl is self:
            self.network._compiled_call_impl = self.compiled


def _tensor(output: Any) -> Tensor:
    """What a network gives, whether alone, first of a tuple, under a name, or as a list of samples."""
    found = output.sample if hasattr(output, "sample") else output
    if isinstance(found, tuple):
        found = found[0]
    if isinstance(found, list):
        found = torch.stack(found) if len({each.shape for each in found}) == 1 else torch.empty(0)
    return found if isinstance(found, Tensor) else torch.empty(0)


def _parts(heard: list[Tensor], v: Tensor) -> list[Tensor]:
    """The branches, each as large as the combined output; nothing if something else was heard."""
    parts: list[Tensor] = []
    for tensor in heard:
        halves = tensor.chunk(2) if tensor.ndim and len(tensor) == 2 * len(v) else (tensor,)
        for half in halves:
            if half.numel() != v.numel() and half.ndim == v.ndim:  # a picture's tokens behind, a variance
                half = half[tuple(slice(size) for size in v.shape)]
            if half.numel() != v.numel():
                return []
            parts.append(half)
    return parts


def _nearer(parts: list[Tensor], v: Tensor) -> tuple[int, float]:
    """Which of two branches is nearer to the combined output, and with which sign."""
    found = []
    for place, part in enumerate(parts):
        there, here = part.double().flatten(), v.double().flatten()
        sign = 1.0 if float(there @ here) >= 0 else -1.0
        found.append((float((here - sign * there).norm()), place, sign))
    _, place, sign = min(found)
    return place, sign
