"""Counting: which steps of each run were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from budcache.errors import PipelineError
from budcache.mask import Mask
from budcache.pipeline.trunk import blocks_of, transformers

__all__ = ["Counting", "Tally", "counting", "watched"]


class Tally:
    """Keeps one mask for each finished run. It is a `pipeline.steps.Listener`.

    A step counts as computed if anybody says `saw_compute` between its beginning and its end.

    Attributes:
        masks: of the finished runs, in order.
        at_start: called at the start of every run.
    """

    def __init__(self) -> None:
        self.masks: list[Mask] = []
        self.at_start: list[Callable[[], None]] = []
        self._bits: list[bool] = []
        self._computed = False

    def saw_compute(self) -> None:
        """The trunk was run at this step."""
        self._computed = True

    def run_begins(self, sigmas: Tensor | None) -> Tensor | None:
        """Nothing is left of the run before, finished or not."""
        self._bits = []
        for start in self.at_start:
            start()
        return None

    def step_begins(self, step: int) -> None:
        """Not computed so far."""
        self._computed = False

    def step_ends(self, step: int, last: bool) -> None:
        """Count the step; the last one finishes the run."""
        self._bits.append(self._computed)
        if last:
            self.masks.append(Mask(tuple(self._bits)))

    def run_ends(self) -> None:
        """There is nothing to let go of."""


class Counting(Tally):
    """Counts runs of the trunk, of whatever run."""

    count = 0

    def saw_compute(self) -> None:
        """One more."""
        self.count += 1


@contextmanager
def counting(pipe: Any) -> Iterator[Counting]:
    """Count how often the trunks of a pipeline run, a batch as one, for the length of a `with` block."""
    found = Counting()
    with watched(pipe, found):
        yield found


@contextmanager
def watched(pipe: Any, tally: Tally) -> Iterator[None]:
    """Tell a tally whenever the last block of a trunk does its work: its attention makes queries."""
    with ExitStack() as undo:
        for transformer in transformers(pipe):
            last = blocks_of(transformer)[-1]
            queries = [module for name, module in last.named_modules() if name.split(".")[-1] in ("to_q", "to_qkv")]
            if not queries:
                raise PipelineError(
                    f"{type(last).__name__} has no module that makes queries, so its calls cannot be counted. "
                    "Compare on a pipeline with another transformer."
                )
            undo.callback(queries[0].register_forward_pre_hook(lambda *_: tally.saw_compute()).remove)
        yield
