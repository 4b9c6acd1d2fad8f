"""The trunk of a transformer: where it lies, and deciding call by call whether it runs.

The trunk is the stack of blocks between a transformer's embedders and its head. Nothing of a model's `forward` is
copied or patched: `attach` replaces its lists of blocks by lists that look the same, and while a `Conductor` has a step
open, looping over them runs what its `Decider` decides. A decider is asked once for each call of a transformer. Either
it lets the blocks run and is shown what leaves the last one, or it says what to go on with in their place.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from budcache.errors import PipelineError
from budcache.pipeline.parts import bare, denoisers

__all__ = [
    "SPLITS",
    "Call",
    "Conductor",
    "Decider",
    "Split",
    "attach",
    "blocks_of",
    "detach",
    "transformers",
    "unknown",
]


@dataclass(frozen=True)
class Split:
    """Where a transformer's trunk lies: all that is known of a model.

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


# diffusers' own TransformerBlockRegistry is no substitute: it is private, is kept by class of block, and does not say
# which of a transformer's lists make up its trunk, in which order they run, or where the time is embedded.
SPLITS: dict[str, Split] = {
    "FluxTransformer2DModel": Split(("transformer_blocks", "single_transformer_blocks"), hidden=1),
    "WanTransformer3DModel": Split(("blocks",), time="condition_embedder"),
    "ZImageTransformer2DModel": Split(("layers",)),
    "QwenImageTransformer2DModel": Split(("transformer_blocks",), hidden=1),
    "SD3Transformer2DModel": Split(("transformer_blocks",), hidden=1),
}


@dataclass
class Call:
    """One call of a transformer, seen from its trunk.

    Attributes:
        transformer: which one, as its `id`; Wan 2.2 has two.
        number: which of its calls within the step, from 0; guidance may make two.
        model: the name of its class.
        hidden: the hidden states that enter the trunk, shape [N, tokens, channels].
        block: the trunk's first block; `args` and `kwargs` are what it was given.
        passed: how many blocks that were looked at have run.
        probed: the hidden states behind the probe blocks, for deciders that have them.
    """

    transformer: int
    number: int
    model: str
    hidden: Tensor
    block: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    passed: int = 0
    probed: Tensor | None = None

    @property
    def key(self) -> tuple[int, int]:
        """What stays the same from step to step."""
        return self.transformer, self.number


class Decider(Protocol):
    """Who decides what a trunk does, asked once for each call of its transformer."""

    @property
    def probes(self) -> int:
        """How many of the trunk's blocks run before `decide` is asked; 0 asks at the entrance."""

    def decide(self, call: Call) -> Tensor | None:
        """None lets the trunk run; hidden states are taken for what leaves it, and none of its (other) blocks runs."""

    def computed(self, call: Call, hidden: Tensor) -> None:
        """The trunk has run, and this is what leaves it."""


class Conductor:
    """Puts a decider in charge of a pipeline's trunks, from `open` to `close`; otherwise they run as they are.

    Attributes:
        turn: the step that is open, if one is.
        calls: how often each transformer has been called in the step that is open, or else was the last.
    """

    def __init__(self) -> None:
        self.turn: Turn | None = None
        self.calls: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        """Whether a step is open."""
        return self.turn is not None

    def open(self, decider: Decider) -> None:
        """Open a step."""
        self.turn = Turn(decider, threading.get_ident())
        self.calls = self.turn.calls

    def close(self) -> None:
        """Close the step; other pipelines may share the transformers and must find them as they were."""
        unfinished = self.turn is not None and self.turn.call is not None
        self.drop()
        if unfinished:
            raise _ends_skipped()

    def drop(self) -> None:
        """Close the step wherever it is: for runs that an exception ended."""
        self.turn = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Conductor:
        twin = memo[id(self)] = Conductor()  # a copied pipeline is at no step
        return twin


@dataclass
class Turn:
    """One open step. Another thread may open one of its own on the same conductor; this one is left as it is."""

    decider: Decider
    thread: int  # that opened it
    calls: dict[int, int] = field(default_factory=dict)  # of each transformer so far
    call: Call | None = None  # between its entrance and its exit
    skipping: bool = False  # the rest of this call's blocks

    def through(self, part: Blocks, blocks: list[Any]) -> Iterator[Any]:
        """What a transformer's loop over one of its lists runs through.

        The loop asks for one block after the other, so a decision made in one of them can end it.
        """
        if part.first:  # the transformer begins a call
            if self.call is not None:
                raise _ends_skipped()
            self.calls[part.transformer] = self.calls.get(part.transformer, 0) + 1
            self.skipping = False
        for index, block in enumerate(blocks):
            if self.skipping:
                return
            first, last = part.first and index == 0, part.last and index == len(blocks) - 1
            looked_at = last or self.call is None or self.call.passed < self.decider.probes
            yield functools.partial(self._run, part, block, first, last) if looked_at else block

    def _run(self, part: Blocks, block: Any, first: bool, last: bool, /, *args: Any, **kwargs: Any) -> Any:
        """A block at which something is decided or recorded."""
        split, decider = part.split, self.decider
        if first:
            number, hidden = self.calls[part.transformer] - 1, split.hidden_in(args, kwargs)
            self.call = Call(part.transformer, number, part.model, hidden, block, args, kwargs)
        call = self.call
        if call is None:
            raise _ends_skipped()
        out, instead = None, decider.decide(call) if first and decider.probes == 0 else None
        if instead is None:
            out = block(*args, **kwargs)
            call.passed += 1
            if call.passed == decider.probes:
                call.probed = split.hidden_out(out)
                instead = decider.decide(call)
        if instead is not None:
            self.call, self.skipping = None, True
            return split.packed(instead, args, kwargs)
        if last:
            if call.passed < decider.probes:
                raise PipelineError(
                    f"the trunk of {part.model} has {call.passed} blocks, but {decider.probes} are to run before it is "
                    "decided whether to skip it. Choose fewer."
                )
            self.call = None
            decider.computed(call, split.hidden_out(out))
        return out


def _ends_skipped() -> PipelineError:
    # Made anew each time: an exception that is raised again keeps the frames, and so the tensors, of every raise.
    return PipelineError(
        "this pipeline skips the first or the last block of its transformer in some calls (skip_guidance_layers?), so "
        'what its trunk does cannot be told. Leave that argument out, or apply a policy with reuse="output".'
    )


class Blocks(nn.ModuleList):
    """A list of blocks that looks like the plain one; looping over it runs what an open conductor makes of it."""

    def __init__(self, transformer: nn.Module, name: str, conductors: list[Conductor]) -> None:
        super().__init__(getattr(transformer, name))
        self.model, self.transformer = type(transformer).__name__, id(transformer)
        self.split, names = SPLITS[self.model], _lists(transformer)
        self.first, self.last = name == names[0], name == names[-1]
        self.conductors = conductors  # the same list in all lists of a transformer

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):  # a slice of a ModuleList is made with its own class, which here takes more
            return nn.ModuleList(list(super().__iter__())[index])
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        blocks = list(super().__iter__())
        for conductor in list(self.conductors):
            turn = conductor.turn  # read once: another thread may open a step of its own at any time
            if turn is None or not (torch.compiler.is_compiling() or turn.thread == threading.get_ident()):
                continue  # (a compiler cannot ask which thread it is in)
            return turn.through(self, blocks)
        return iter(blocks)


def transformers(pipe: Any) -> list[Any]:
    """The networks that a pipeline calls at every step, themselves, whatever is wrapped around them."""
    return [bare(module) for module in denoisers(pipe).values()]


def unknown(pipe: Any) -> str | None:
    """The class of the first of a pipeline's networks whose trunk is not in `SPLITS`, if there is one."""
    names = [type(transformer).__name__ for transformer in transformers(pipe)]
    return next((name for name in names if name not in SPLITS), None)


def blocks_of(transformer: nn.Module) -> list[nn.Module]:
    """The blocks of a transformer's trunk, in the order in which they run."""
    lists = [getattr(transformer, name) for name in _lists(transformer)]
    return [blocks[index] for blocks in lists for index in range(len(blocks))]


def _lists(transformer: nn.Module) -> list[str]:
    """The names of a trunk's lists that have any blocks."""
    return [name for name in SPLITS[type(transformer).__name__].blocks if len(getattr(transformer, name))]


# Pipelines of several threads share transformers, and one at a time changes their lists. The same thread may come in
# twice: garbage collected in the middle may be a model that was never closed.
_changing = threading.RLock()


def attach(pipe: Any, conductor: Conductor) -> None:
    """Put a conductor over a pipeline's trunks, which must be known; until it opens a step nothing changes."""
    with _changing:
        for transformer in transformers(pipe):
            names = _lists(transformer)
            if not isinstance(getattr(transformer, names[0]), Blocks):
                conductors: list[Conductor] = []
                lists = [Blocks(transformer, name, conductors) for name in names]
                transformer._modules.update(zip(names, lists, strict=True))
            getattr(transformer, names[0]).conductors.append(conductor)


def detach(pipe: Any, conductor: Conductor) -> None:
    """Undo `attach`; with the last conductor gone the transformers have their plain lists again."""
    with _changing:
        for transformer in transformers(pipe):
            for name in _lists(transformer):
                blocks = getattr(transformer, name)
                if isinstance(blocks, Blocks):
                    blocks.conductors[:] = [other for other in blocks.conductors if other is not conductor]
                    if not blocks.conductors:
                        transformer._modules[name] = nn.ModuleList(blocks)
