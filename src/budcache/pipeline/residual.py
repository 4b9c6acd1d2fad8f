"""Reuse of the trunk's residual: the mode of the authors' code.

A computed step leaves behind R = h_out - h_in, the change that the trunk made to the hidden states; a reused step runs
embedder and head afresh and adds R in place of the trunk.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from budcache.errors import PipelineError
from budcache.pipeline import trunk as trunks
from budcache.pipeline.trunk import SPLITS, Call, Conductor, unknown

__all__ = ["Memo", "Trunk", "attach", "detach"]

# One residual per transformer (Wan 2.2 has two) and per call within a step (guidance may make two).
Memo = dict[tuple[int, int], Tensor]


class Trunk:
    """The trunks of one run: at each step they are computed and remembered, or replaced by what is remembered.

    Attributes:
        memo: the residuals of the last computed step.
    """

    def __init__(self) -> None:
        self.memo: Memo = {}
        self.conductor = Conductor()

    @property
    def calls(self) -> dict[int, int]:
        """How often each transformer was called in this step; nothing if the trunk is not attached to any."""
        return self.conductor.calls

    def begin(self, compute: bool, memo: Memo | None = None) -> None:
        """Open a step: compute and remember, or reuse what `memo` (or the last computed step) holds."""
        if memo is not None:
            self.memo = memo
        elif compute:
            self.memo = {}
        self.conductor.open(_Step(compute, self.memo))

    def end(self) -> Memo:
        """Close the step."""
        self.conductor.close()
        return self.memo

    def forget(self) -> None:
        """Let go of everything, wherever the run is: it is over, or an exception or another thread ended it."""
        self.conductor.drop()
        self.memo = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Trunk:
        twin = memo[id(self)] = Trunk()  # a copied pipeline is at no step and remembers nothing
        twin.conductor = copy.deepcopy(self.conductor, memo)
        return twin


@dataclass(frozen=True)
class _Step:
    """One step, computed or reused: what the conductor asks (see `trunk.Decider`)."""

    compute: bool
    memo: Memo
    probes: ClassVar[int] = 0

    def decide(self, call: Call) -> Tensor | None:
        """The step was opened to compute or to reuse."""
        return None if self.compute else call.hidden + self._residual(call)

    def computed(self, call: Call, hidden: Tensor) -> None:
        """Remember the residual."""
        self.memo[call.key] = hidden - call.hidden

    def _residual(self, call: Call) -> Tensor:
        residual = self.memo.get(call.key)
        if residual is None:
            raise PipelineError(
                "a reused step calls a transformer (or a guidance branch) that no step before it computed. "
                "Compute the first step of each, for Wan 2.2 the one at the boundary between its experts too, "
                'or use reuse="output".'
            )
        if residual.shape != call.hidden.shape:
            raise PipelineError(
                f"the hidden states changed from {list(residual.shape)} to {list(call.hidden.shape)} within a run, so "
                'the residual does not fit. Guidance that starts or stops midway needs reuse="output".'
            )
        return residual


def attach(pipe: Any, trunk: Trunk) -> None:
    """Let `trunk` decide what the blocks of a pipeline's transformers do; until it opens a step nothing changes."""
    if getattr(pipe, "controlnet", None) is not None:
        raise PipelineError(
            "residual reuse skips the blocks into which a ControlNet adds its features, but the transformer adds "
            'them all the same, so they would count twice. Use reuse="output".'
        )
    if name := unknown(pipe):
        raise PipelineError(
            f"residual reuse knows the trunks of {', '.join(sorted(SPLITS))}, not of {name}. "
            'Use reuse="output", which works for every pipeline.'
        )
    trunks.attach(pipe, trunk.conductor)


def detach(pipe: Any, trunk: Trunk) -> None:
    """Undo `attach`."""
    trunks.detach(pipe, trunk.conductor)
