"""Reuse of the trunk's residual: the mode of the authors' code.

The trunk is the stack of blocks between a transformer's embedders and its head. A computed step leaves
behind R = h_out - h_in, the change that the trunk made to the hidden states; a reused step runs embedder
and head afresh and adds R in place of the trunk. Nothing of a model's `forward` is copied or patched: its
lists of blocks are replaced by lists that look the same and, when looped over on a reused step, hold a
single shortcut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from budcache.errors import PipelineError
from budcache.pipeline.parts import bare, denoisers

__all__ = ["SPLITS", "Split", "Trunk", "attach", "detach"]


@dataclass(frozen=True)
class Split:
    """Where a transformer's trunk lies: all that residual reuse knows of a model.

    Args:
        blocks: names of the trunk's lists of blocks, in the order in which they run.
        hidden: position of the hidden states in what a block returns; None if it returns nothing else.
            Every block takes the hidden states first, and the text, if it returns it, second.
    """

    blocks: tuple[str, ...]
    hidden: int | None = None


SPLITS: dict[str, Split] = {
    "FluxTransformer2DModel": Split(("transformer_blocks", "single_transformer_blocks"), hidden=1),
    "WanTransformer3DModel": Split(("blocks",)),
    "ZImageTransformer2DModel": Split(("layers",)),
    "QwenImageTransformer2DModel": Split(("transformer_blocks",), hidden=1),
    "SD3Transformer2DModel": Split(("transformer_blocks",), hidden=1),
}

# One residual per transformer (Wan 2.2 has two) and per call within a step (guidance may make two).
Memo = dict[tuple[int, int], Tensor]


@dataclass
class Trunk:
    """What the trunks of one run are to do now: None lets them run as if nothing were there."""

    compute: bool | None = None
    memo: Memo = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)  # per transformer, within this step

    def begin(self, compute: bool, memo: Memo | None = None) -> None:
        """Open a step: compute and remember, or reuse what `memo` (or the last computed step) holds."""
        self.compute, self.calls = compute, {}
        if memo is not None:
            self.memo = memo
        elif compute:
            self.memo = {}

    def enter(self, transformer: int) -> tuple[int, int]:
        """Count a call of a transformer; returns the key of its residual."""
        ordinal = self.calls.get(transformer, 0)
        self.calls[transformer] = ordinal + 1
        return transformer, ordinal

    def end(self) -> Memo:
        """Close the step; other pipelines may share the transformer and must find it as it was."""
        self.compute = None
        return self.memo

    def __deepcopy__(self, memo: dict[int, Any]) -> Trunk:
        copy = Trunk()
        memo[id(self)] = copy
        return copy


class _Blocks(nn.ModuleList):
    """A list of blocks that is shortened to one shortcut while a step is reused."""

    def __init__(self, original: nn.ModuleList, split: Split, position: int) -> None:
        super().__init__(original)
        self.split, self.position = split, position
        self.trunks: list[Trunk] = []

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # a slice of a ModuleList is made with its own class, which here takes more
            return nn.ModuleList(list(super().__iter__())[index])
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        trunk = next((trunk for trunk in self.trunks if trunk.compute is not None), None)
        blocks = list(super().__iter__())
        if trunk is None:
            return iter(blocks)
        return iter(_computed(self, blocks, trunk) if trunk.compute else _reused(self, trunk))


def _computed(here: _Blocks, blocks: list[Any], trunk: Trunk) -> list[Any]:
    """The blocks as they are, with an ear at the trunk's entrance and at its exit."""
    if here.position == 0:
        blocks[0] = _heard(blocks[0], trunk, here.split, entrance=_owner(here))
    if here.position == len(here.split.blocks) - 1:
        blocks[-1] = _heard(blocks[-1], trunk, here.split, exit=_owner(here))
    return blocks


def _heard(
    block: Callable[..., Any], trunk: Trunk, split: Split, entrance: int | None = None, exit: int | None = None
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if entrance is not None:
            trunk.memo[trunk.enter(entrance)] = _hidden_in(args, kwargs)
        out = block(*args, **kwargs)
        if exit is not None:
            key = (exit, trunk.calls[exit] - 1)
            trunk.memo[key] = (out if split.hidden is None else out[split.hidden]) - trunk.memo[key]
        return out

    return run


def _reused(here: _Blocks, trunk: Trunk) -> list[Any]:
    if here.position > 0:
        return []
    owner, split = _owner(here), here.split

    def shortcut(*args: Any, **kwargs: Any) -> Any:
        hidden, residual = _hidden_in(args, kwargs), trunk.memo.get(trunk.enter(owner))
        if residual is None:
            raise PipelineError(
                "a reused step calls a transformer (or a guidance branch) that no step before it computed. "
                "Compute the first step of each, for Wan 2.2 the one at the boundary between its experts too, "
                'or use reuse="output".'
            )
        if residual.shape != hidden.shape:
            raise PipelineError(
                f"the hidden states changed from {list(residual.shape)} to {list(hidden.shape)} within a run, so the "
                'residual does not fit. Guidance that starts or stops midway needs reuse="output".'
            )
        hidden = hidden + residual
        if split.hidden is None:
            return hidden
        text = kwargs["encoder_hidden_states"] if "encoder_hidden_states" in kwargs else args[1]
        return (hidden, text) if split.hidden == 0 else (text, hidden)

    return [shortcut]


def _hidden_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
    return hidden


def _owner(here: _Blocks) -> int:
    # All lists of one transformer share one number: the identity of their list of trunks.
    return id(here.trunks)


def attach(pipe: Any, trunk: Trunk) -> None:
    """Let `trunk` decide what the blocks of a pipeline's transformers do; until it opens a step nothing changes."""
    if getattr(pipe, "controlnet", None) is not None:
        raise PipelineError(
            "residual reuse skips the blocks into which a ControlNet adds its features, but the transformer adds "
            'them all the same, so they would count twice. Use reuse="output".'
        )
    for transformer in map(bare, denoisers(pipe).values()):
        name = type(transformer).__name__
        if name not in SPLITS:
            raise PipelineError(
                f"residual reuse knows the trunks of {', '.join(sorted(SPLITS))}, not of {name}. "
                'Use reuse="output", which works for every pipeline.'
            )
        trunks: list[Trunk] | None = None
        for position, blocks in enumerate(SPLITS[name].blocks):
            found = getattr(transformer, blocks)
            if not isinstance(found, _Blocks):
                found = transformer._modules[blocks] = _Blocks(found, SPLITS[name], position)
            trunks = found.trunks = found.trunks if trunks is None else trunks
        assert trunks is not None
        trunks.append(trunk)


def detach(pipe: Any, trunk: Trunk) -> None:
    """Undo `attach`; with the last trunk gone the transformers have their plain lists again."""
    for transformer in map(bare, denoisers(pipe).values()):
        for name in SPLITS[type(transformer).__name__].blocks:
            blocks = getattr(transformer, name)
            if isinstance(blocks, _Blocks):
                blocks.trunks[:] = [other for other in blocks.trunks if other is not trunk]
                if not blocks.trunks:
                    transformer._modules[name] = nn.ModuleList(blocks)
