"""Reuse of the trunk's residual: the mode of the authors' code.

The trunk is the stack of blocks between a transformer's embedders and its head. A computed step leaves
behind R = h_out - h_in, the change that the trunk made to the hidden states; a reused step runs embedder
and head afresh and adds R in place of the trunk. Nothing of a model's `forward` is copied or patched: its
lists of blocks are replaced by lists that look the same and, when looped over on a reused step, hold a
single shortcut.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from budcache.errors import PipelineError
from budcache.pipeline.parts import bare, denoisers

__all__ = ["SPLITS", "Blocks", "Path", "Split", "Trunk", "attach", "detach"]


@dataclass(frozen=True)
class Split:
    """Where a transformer's trunk lies: all that residual reuse knows of a model.

    Args:
        blocks: names of the trunk's lists of blocks, in the order in which they run.
        hidden: position of the hidden states in what a block returns; None if it returns nothing else.
            Every block takes the hidden states first, and the text, if it returns it, second.
        time: name of the module whose first output is the embedding of the time, where the blocks are not given it.
    """

    blocks: tuple[str, ...]
    hidden: int | None = None
    time: str | None = None

    def hidden_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The hidden states in what a block is given."""
        hidden: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        return hidden

    def hidden_out(self, out: Any) -> Tensor:
        """The hidden states in what a block returns."""
        hidden: Tensor = out if self.hidden is None else out[self.hidden]
        return hidden

    def packed(self, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a block that was given this would return, were these its hidden states and the text unchanged."""
        if self.hidden is None:
            return hidden
        text = kwargs["encoder_hidden_states"] if "encoder_hidden_states" in kwargs else args[1]
        return (hidden, text) if self.hidden == 0 else (text, hidden)


SPLITS: dict[str, Split] = {
    "FluxTransformer2DModel": Split(("transformer_blocks", "single_transformer_blocks"), hidden=1),
    "WanTransformer3DModel": Split(("blocks",), time="condition_embedder"),
    "ZImageTransformer2DModel": Split(("layers",)),
    "QwenImageTransformer2DModel": Split(("transformer_blocks",), hidden=1),
    "SD3Transformer2DModel": Split(("transformer_blocks",), hidden=1),
}

# One residual per transformer (Wan 2.2 has two) and per call within a step (guidance may make two).
Memo = dict[tuple[int, int], Tensor]
# What a transformer's loop over one of its lists runs through, given that list and its blocks. It is asked for one
# block after the other, so it may decide on the way how many there are.
Path = Callable[["Blocks", list[Any]], Iterator[Any]]


@dataclass
class Trunk:
    """What the trunks of one run are to do now: None lets them run as if nothing were there.

    Args:
        path: who decides, at the trunk's entrance and for each call, what is run. Without one `compute` decides.
    """

    compute: bool | None = None
    memo: Memo = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)  # per transformer, within this step
    entered: Memo = field(default_factory=dict)  # hidden states that have entered a trunk and not left it
    thread: int = 0
    path: Path | None = None

    def begin(self, compute: bool, memo: Memo | None = None) -> None:
        """Open a step: compute and remember, or reuse what `memo` (or the last computed step) holds."""
        self.thread = threading.get_ident()  # first: see `Blocks.__iter__`
        self.compute, self.calls, self.entered = compute, {}, {}
        if memo is not None:
            self.memo = memo
        elif compute:
            self.memo = {}

    def end(self) -> Memo:
        """Close the step; other pipelines may share the transformer and must find it as it was."""
        self.compute = None
        if self.entered:
            self.entered = {}
            raise _SKIPPED
        return self.memo

    def forget(self) -> None:
        """Let go of everything, wherever the run is: it is over, or an exception or another thread ended it."""
        self.compute, self.memo, self.entered = None, {}, {}

    def key(self, transformer: int) -> tuple[int, int]:
        """Whose residual it is that the current call leaves behind or needs."""
        return transformer, self.calls[transformer] - 1

    def __deepcopy__(self, memo: dict[int, Any]) -> Trunk:
        copy = Trunk()
        memo[id(self)] = copy
        return copy


_SKIPPED = PipelineError(
    "this pipeline skips the first or the last block of its transformer in some calls (skip_guidance_layers?), so what "
    'its trunk does cannot be told. Use reuse="output".'
)


class Blocks(nn.ModuleList):
    """A list of blocks that is shortened to one shortcut while a step is reused."""

    def __init__(self, original: nn.ModuleList, split: Split, first: bool, last: bool, trunks: list[Trunk]) -> None:
        super().__init__(original)
        self.split, self.first, self.last, self.trunks = split, first, last, trunks

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # a slice of a ModuleList is made with its own class, which here takes more
            return nn.ModuleList(list(super().__iter__())[index])
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        blocks = list(super().__iter__())
        for trunk in list(self.trunks):
            # Another thread may open a step of its own at any time. It puts itself down first and then makes new
            # dictionaries, so what was read before its thread is this run's own, and stays so.
            compute, calls, memo, entered = trunk.compute, trunk.calls, trunk.memo, trunk.entered
            if compute is None or not (torch.compiler.is_compiling() or trunk.thread == threading.get_ident()):
                continue  # (a compiler cannot ask which thread it is in)
            if self.first:  # the transformer begins a call
                calls[self.owner] = calls.get(self.owner, 0) + 1
            if trunk.path is not None:
                return trunk.path(self, blocks)
            key = self.owner, calls[self.owner] - 1
            return iter(self._computed(blocks, key, memo, entered) if compute else self._shortcut(key, memo))
        return iter(blocks)

    @property
    def owner(self) -> int:
        """All lists of one transformer share one number: the identity of their list of trunks."""
        return id(self.trunks)

    def _computed(self, blocks: list[Any], key: tuple[int, int], memo: Memo, entered: Memo) -> list[Any]:
        """The blocks as they are, the first and the last wrapped to record what enters the trunk and leaves it."""
        entrance, exit = blocks[0], blocks[-1]

        def enter(*args: Any, **kwargs: Any) -> Any:
            entered[key] = self.split.hidden_in(args, kwargs)
            return entrance(*args, **kwargs)

        def leave(*args: Any, **kwargs: Any) -> Any:
            out = (enter if self.first and len(blocks) == 1 else exit)(*args, **kwargs)
            before = entered.pop(key, None)
            if before is None:
                raise _SKIPPED
            memo[key] = self.split.hidden_out(out) - before
            return out

        if self.first:
            blocks[0] = enter
        if self.last:
            blocks[-1] = leave
        return blocks

    def _shortcut(self, key: tuple[int, int], memo: Memo) -> list[Callable[..., Any]]:
        """What a reused step runs in place of all blocks: one shortcut in the first list, nothing in the others."""

        def shortcut(*args: Any, **kwargs: Any) -> Any:
            hidden, residual = self.split.hidden_in(args, kwargs), memo.get(key)
            if residual is None:
                raise PipelineError(
                    "a reused step calls a transformer (or a guidance branch) that no step before it computed. "
                    "Compute the first step of each, for Wan 2.2 the one at the boundary between its experts too, "
                    'or use reuse="output".'
                )
            if residual.shape != hidden.shape:
                raise PipelineError(
                    f"the hidden states changed from {list(residual.shape)} to {list(hidden.shape)} within a run, so "
                    'the residual does not fit. Guidance that starts or stops midway needs reuse="output".'
                )
            return self.split.packed(hidden + residual, args, kwargs)

        return [shortcut] if self.first else []


def attach(pipe: Any, trunk: Trunk) -> None:
    """Let `trunk` decide what the blocks of a pipeline's transformers do; until it opens a step nothing changes."""
    if getattr(pipe, "controlnet", None) is not None:
        raise PipelineError(
            "residual reuse skips the blocks into which a ControlNet adds its features, but the transformer adds "
            'them all the same, so they would count twice. Use reuse="output".'
        )
    transformers = [bare(module) for module in denoisers(pipe).values()]
    for transformer in transformers:
        name = type(transformer).__name__
        if name not in SPLITS:
            raise PipelineError(
                f"residual reuse knows the trunks of {', '.join(sorted(SPLITS))}, not of {name}. "
                'Use reuse="output", which works for every pipeline.'
            )
    for transformer in transformers:
        split = SPLITS[type(transformer).__name__]
        names = [name for name in split.blocks if len(getattr(transformer, name))]
        lists = [getattr(transformer, name) for name in names]
        if not isinstance(lists[0], Blocks):
            trunks: list[Trunk] = []
            lists = [Blocks(blocks, split, blocks is lists[0], blocks is lists[-1], trunks) for blocks in lists]
            transformer._modules.update(zip(names, lists, strict=True))
        lists[0].trunks.append(trunk)


def detach(pipe: Any, trunk: Trunk) -> None:
    """Undo `attach`; with the last trunk gone the transformers have their plain lists again."""
    for transformer in map(bare, denoisers(pipe).values()):
        for name in SPLITS[type(transformer).__name__].blocks:
            blocks = getattr(transformer, name)
            if isinstance(blocks, Blocks):
                blocks.trunks[:] = [other for other in blocks.trunks if other is not trunk]
                if not blocks.trunks:
                    transformer._modules[name] = nn.ModuleList(blocks)
