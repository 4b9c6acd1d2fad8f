"""Counting: which calls of each run were computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from budcache.errors import PipelineError
from budcache.mask import Computed
from budcache.pipeline.trunk import blocks_of, transformers

__all__ = ["Counting", "EveryStep", "Tally", "counting", "watched"]


class Tally:
    """Keeps what each finished run computed. It is a `pipeline.steps.Listener`.

    It is told of every call of a transformer, and then whether its trunk was run.

    Attributes:
        runs: those that are finished, in order.
        at_start: called at the start of every run.
    """

    def __init__(self) -> None:
        self.runs: list[Computed] = []
        self.at_start: list[Callable[[], None]] = []
        self._steps: list[tuple[bool, ...]] = []
        self._calls: list[bool] = []  # of the step that is open

    def call_begins(self) -> None:
        """A transformer is called; nothing is computed so far."""
        self._calls.append(False)

    def saw_compute(self) -> None:
        """The trunk was run in this call."""
        self._calls[-1:] = [True]

    def run_begins(self, sigmas: Tensor | None) -> Tensor | None:
        """Nothing is left of the run before, finished or not."""
        self._steps = []
        for start in self.at_start:
            start()
        return None

    def step_begins(self, step: int) -> None:
        """No calls so far."""
        self._calls = []

    def step_ends(self, step: int, last: bool) -> None:
        """Keep the step; the last one finishes the run."""
        self._steps.append(tuple(self._calls) or (False,))
        if last:
            self.runs.append(Computed(tuple(self._steps)))

    def run_ends(self) -> None:
        """There is nothing to let go of."""


class EveryStep(Tally):
    """Of methods that run the whole network at every step, so that nothing has to be watched."""

    def step_begins(self, step: int) -> None:
        """A call."""
        self._calls = [True]


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
    """Tell a tally of every call, and whenever the last block of a trunk does its work: its attention makes queries."""
    with ExitStack() as undo:
        for transformer in transformers(pipe):
            undo.callback(transformer.register_forward_pre_hook(lambda *_: tally.call_begins()).remove)
            last = blocks_of(transformer)[-1]
            queries = [module for name, module in last.named_modules() if name.split(".")[-1] in ("to_q", "to_qkv")]
            if not queries:
                raise PipelineError(
                    f"{type(last).__name__} has no module that makes queries, so its calls cannot be counted. "
                    "Compare on a pipeline with another transformer."
                )
            undo.callback(queries[0].register_forward_pre_hook(lambda *_: tally.saw_compute()).remove)
        yield
