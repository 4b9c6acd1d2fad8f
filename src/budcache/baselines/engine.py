"""The one engine that carries out every native method."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from budcache.baselines.base import Branch, Here, Native
from budcache.baselines.tally import Tally
from budcache.baselines.taps import Visit, tapped
from budcache.pipeline.trunk import SPLITS, Call, Conductor, attach, detach, transformers

__all__ = ["Engine"]


class Engine:
    """Carries out a native method on a pipeline's trunks.

    It is told where a run is (`pipeline.steps.Listener`), is asked what the trunks are to do (`pipeline.trunk.Decider`)
    and asks the method's branches in turn.
    """

    def __init__(self, method: Native, steps: int, tally: Tally) -> None:
        self.method, self.steps, self.tally = method, steps, tally
        self.conductor = Conductor()
        self.step = 0
        self.decision: bool | None = None  # of this step's first call
        self.visit: Visit | None = None  # the call that is being run
        self.branches: dict[tuple[int, int], tuple[Branch, torch.Size]] = {}  # those with something to reuse
        self.times: dict[int, Tensor] = {}

    # Where the run is

    def run_begins(self, sigmas: Tensor | None) -> Tensor | None:
        """The method may choose other noise levels."""
        self.tally.run_begins(sigmas)
        return None if sigmas is None else self.method.sigmas(sigmas, self.steps)

    def step_begins(self, step: int) -> None:
        """Nothing is decided yet."""
        self.tally.step_begins(step)
        self.step, self.decision, self.visit = step, None, None
        self.conductor.open(self)

    def step_ends(self, step: int, last: bool) -> None:
        """Count it."""
        self.conductor.close()
        self.tally.step_ends(step, last)

    def run_ends(self) -> None:
        """Let go of all state."""
        self.conductor.drop()
        self.visit, self.branches, self.times = None, {}, {}
        self.tally.run_ends()

    # What the trunks are to do

    @property
    def probes(self) -> int:
        """As the method has it."""
        return self.method.probes

    def decide(self, call: Call) -> Tensor | None:
        """The first branch of a step decides for all, or each for itself; who has nothing to reuse computes anyway."""
        known, size = self.branches.get(call.key, (None, None))
        if size != call.hidden.shape:  # nothing is kept yet, or for another batch or size
            known = None
        branch = known or self.method.branch(self.steps, call.number)
        here = self._here(call)
        if known is not None and (self.decision is None or self.method.apart):
            compute = branch.decide(here)
        else:
            compute = known is None or self.decision is True
            branch.follow(here, compute)
        if self.decision is None:
            self.decision = compute
        self.tally.call_begins()
        if compute:
            self.tally.saw_compute()
        if compute or self.method.taps:  # around taps the blocks run at skipped steps too
            self.visit = Visit(branch, here, compute)
            return None
        return call.hidden + branch.skipped(here)

    def computed(self, call: Call, hidden: Tensor) -> None:
        """Show the branch what the trunk did."""
        visit, self.visit = self.visit, None
        assert visit is not None
        if visit.compute:
            visit.branch.computed(visit.here, hidden - call.hidden)
            self.branches[call.key] = visit.branch, call.hidden.shape

    def _here(self, call: Call) -> Here:
        time = self.times.get(call.transformer)
        return Here(
            self.step, self.steps, call.hidden, call.block, call.args, call.kwargs, call.model, time, call.probed
        )

    # Hooks

    @contextmanager
    def attached(self, pipe: Any) -> Iterator[None]:
        """All hooks on; off again on leaving."""
        with ExitStack() as undo:
            attach(pipe, self.conductor)
            undo.callback(detach, pipe, self.conductor)
            for transformer in transformers(pipe):
                if (time := SPLITS[type(transformer).__name__].time) is not None:
                    keep = functools.partial(self._keep_time, id(transformer))
                    undo.callback(getattr(transformer, time).register_forward_hook(keep).remove)
            if self.method.taps:
                undo.enter_context(tapped(pipe, type(self.method).__name__, self.method.taps, lambda: self.visit))
            yield

    def _keep_time(self, transformer: int, module: Any, args: Any, out: Any) -> None:
        if self.conductor.is_open:
            self.times[transformer] = out[0] if isinstance(out, tuple) else out
