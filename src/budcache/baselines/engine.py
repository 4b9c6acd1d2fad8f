"""The one engine that carries out every native method, with all its hooks, and counts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from budcache.baselines.base import Branch, Here, Native, Taps
from budcache.errors import PipelineError
from budcache.mask import Mask
from budcache.pipeline.parts import bare, denoisers
from budcache.pipeline.residual import SPLITS, Blocks, Memo, Trunk, attach, detach
from budcache.pipeline.standin import install

__all__ = ["Engine"]


@dataclass
class _Call:
    """One call of a transformer, between its trunk's entrance and its exit."""

    branch: Branch
    key: tuple[int, int]
    ready: bool  # there is something to reuse
    here: Here | None = None
    compute: bool = True
    passed: int = 0


class Engine(Trunk):
    """Carries out a native method on the trunks of a pipeline, or just counts (without one)."""

    def __init__(self, method: Native | None, steps: int, masks: list[Mask]) -> None:
        super().__init__(path=self.through)
        self.method, self.steps, self.masks = method, steps, masks
        self.place: Any = None
        self.branches: dict[tuple[int, int], tuple[Branch, torch.Size]] = {}
        self.times: dict[int, Tensor] = {}
        self.models: dict[int, str] = {}
        self.bits: list[bool] = []
        self.now: _Call | None = None
        self.decision: bool | None = None
        self.any_computed = False
        self.starts: list[Callable[[], None]] = []

    # The life of a run

    def start(self) -> None:
        """A run begins: nothing is left of the one before, finished or not."""
        self.end()
        self.bits = []
        for start in self.starts:
            start()
        inner = self.place.inner
        if self.method is not None:
            own = getattr(inner, "sigmas", None)
            if isinstance(own, Tensor) and len(own) == self.steps + 1:
                new = self.method.sigmas(own.detach().to("cpu", torch.float32), self.steps)
                if not torch.equal(new, own.detach().to("cpu", torch.float32)):
                    install(inner, tuple(new.tolist()))

    def begin(self, compute: bool, memo: Memo | None = None) -> None:
        """A step begins."""
        super().begin(compute, {})
        self.now, self.decision, self.any_computed = None, None, False

    def stepped(self, last: bool) -> None:
        """A step is done; the last one finishes the run."""
        self.compute = None
        if self.now is not None:
            raise PipelineError(
                "this pipeline left its transformer midway through the trunk, or skips its last block in some calls "
                "(skip_guidance_layers?), so what the trunk does cannot be told. Leave that argument out."
            )
        self.bits.append(self.any_computed)
        if last:
            self.masks.append(Mask(tuple(self.bits)))

    def end(self) -> Memo:
        """A run is over, or was left: let go of all tensors."""
        self.compute, self.now, self.branches, self.times = None, None, {}, {}
        return {}

    def saw_compute(self) -> None:
        """For methods that run by themselves: their trunk was seen running in this step."""
        self.any_computed = True

    # The trunk

    def through(self, blocks: Blocks, items: list[Any]) -> Iterator[Any]:
        """What a transformer's loop over one of its lists of blocks runs through; see `residual.Path`."""
        if blocks.first:
            key = self.key(blocks.owner)
            assert self.method is not None
            known = self.branches.get(key)
            branch = known[0] if known else self.method.branch(self.steps, key[1])
            self.now = _Call(branch, key, ready=known is not None)
        call = self.now
        for index, block in enumerate(items):
            if call is None or not (call.compute or self.method is None or self.method.taps):
                return  # skipped: nothing is left to run, in this list and in those after it
            ends = blocks.last and index == len(items) - 1
            yield functools.partial(self._block, call, blocks, block, blocks.first and index == 0, ends)

    def _block(
        self, call: _Call, blocks: Blocks, block: Any, first: bool, ends: bool, /, *args: Any, **kwargs: Any
    ) -> Any:
        method, split = self.method, blocks.split
        assert method is not None
        if first:
            hidden = split.hidden_in(args, kwargs)
            known = self.branches.get(call.key)
            if known is not None and known[1] != hidden.shape:  # another batch or size: what is kept does not fit
                call.branch, call.ready = method.branch(self.steps, call.key[1]), False
            model, time = self.models[blocks.owner], self.times.get(blocks.owner)
            call.here = Here(self.place.step_index, self.steps, hidden, block, args, kwargs, model, time)
            if not method.probes and not self._decide(call):
                return split.packed(hidden + call.branch.skipped(call.here), args, kwargs)
        here = call.here
        if here is None:
            raise PipelineError(
                "this pipeline skips the first block of its transformer in some calls (skip_guidance_layers?), so what "
                "the trunk does cannot be told. Leave that argument out."
            )
        out = block(*args, **kwargs)
        call.passed += 1
        if call.passed == method.probes:
            here.probed = split.hidden_out(out)
            if not self._decide(call):
                return split.packed(here.hidden + call.branch.skipped(here), args, kwargs)
        if ends:
            self.now = None
            if call.compute:
                call.branch.computed(here, split.hidden_out(out) - here.hidden)
                self.branches[call.key] = (call.branch, here.hidden.shape)
        return out

    def _decide(self, call: _Call) -> bool:
        """The first branch of a step decides for all; whoever has nothing to reuse computes in any case."""
        assert call.here is not None and self.method is not None
        if call.ready and self.decision is None:
            call.compute = call.branch.decide(call.here)
        else:
            call.compute = not call.ready or self.decision is True
            call.branch.follow(call.here, call.compute)
        if self.decision is None:
            self.decision = call.compute
        self.any_computed |= call.compute
        if not call.compute and not self.method.taps:
            self.now = None
        return call.compute or bool(self.method.taps)

    # Hooks

    @contextmanager
    def attached(self, pipe: Any) -> Iterator[None]:
        """All hooks on; off again on leaving."""
        with ExitStack() as undo:
            attach(pipe, self)
            undo.callback(detach, pipe, self)
            for transformer in map(bare, denoisers(pipe).values()):
                name = type(transformer).__name__
                split = SPLITS[name]
                lists = [getattr(transformer, each) for each in split.blocks]
                owner = next(blocks for blocks in lists if isinstance(blocks, Blocks)).owner
                self.models[owner] = name
                if split.time is not None:
                    keep = functools.partial(self._keep_time, owner)
                    undo.callback(getattr(transformer, split.time).register_forward_hook(keep).remove)
                if self.method is not None and self.method.taps:
                    for blocks in lists:
                        for index in range(len(blocks)):
                            self._tap(blocks[index], self.method.taps, undo)
            yield

    def _keep_time(self, owner: int, module: Any, args: Any, out: Any) -> None:
        if self.compute is not None:
            self.times[owner] = out[0] if isinstance(out, tuple) else out

    def _tap(self, block: Any, taps: Any, undo: ExitStack) -> None:
        name = type(bare(block)).__name__
        if name not in taps:
            raise PipelineError(
                f"{type(self.method).__name__} knows what to forecast in {', '.join(sorted(taps))}, not in {name}. "
                f"Add its modules to the method's taps."
            )
        which: Taps = taps[name]
        for each in (*which.forecast, *which.blank):
            module = getattr(block, each, None)
            if module is None:
                continue  # SD3's last block has no feed-forward for the text
            own = module.__dict__.get("forward")
            module.forward = self._tapped(module, module.forward, blank=each in which.blank)
            undo.callback(_restore, module, own)

    def _tapped(self, module: Any, forward: Any, blank: bool) -> Any:
        shape: list[Any] = []

        def tapped(*args: Any, **kwargs: Any) -> Any:
            call = self.now
            if call is None or call.here is None:
                return forward(*args, **kwargs)
            if call.compute:
                out = forward(*args, **kwargs)
                if blank:
                    shape[:] = [out.shape[-1]]
                else:
                    call.branch.tapped(id(module), call.here, out)
                return out
            if blank:  # its output feeds only modules whose own outputs are forecast
                given: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
                return given.new_zeros(1).expand(*given.shape[:-1], *shape)
            return call.branch.forecast(id(module), call.here)

        return tapped


def _restore(module: Any, own: Any) -> None:
    if own is None:
        del module.forward
    else:
        module.forward = own
