"""The model as the rollout sees it: two verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Model", "OutputReuse"]


class Model(Protocol):
    """A velocity field that can be computed, or reused from what a computed step left behind.

    One that runs guidance as two branches, and can tell them apart, also has an attribute `conditional`: what the
    conditional branch alone gave when the model was last computed (F12).
    """

    def compute(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, Any]:
        """The velocity at (x, sigma), shape of x, and the memo that later steps may reuse."""

    def reuse(self, x: Tensor, sigma: Tensor, memo: Any) -> Tensor:
        """The velocity at (x, sigma), shape of x, from the memo of an earlier step."""


class OutputReuse:
    """Any function `(x, sigma) -> v` as a `Model` whose memo is its last output (equation 2)."""

    def __init__(self, field: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.field = field
        self.calls = 0

    def compute(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
        """Call the function."""
        self.calls += 1
        v = self.field(x, sigma)
        return v, v

    def reuse(self, x: Tensor, sigma: Tensor, memo: Tensor) -> Tensor:
        """Repeat the output, whatever x and sigma have become."""
        return memo
