"""Counting operations: what part of its network a method really runs, in units of whole calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from budcache.pipeline.parts import denoisers

__all__ = ["Operations", "counted"]


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the multiplications and additions of matrix products, convolutions and attentions that run in it.

    Everything else (norms, gates, sums) is left out, as is usual: it is small, and so are the blends of any method.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func._overloadpacket
        if packet in flop_registry:
            self.total += int(flop_registry[packet](*args, **kwargs, out_val=out))
        elif "scaled_dot_product" in packet.__name__:  # attention of the CPU, which torch's own counter does not know
            self.total += _attention(*args[:3])
        return out


def _attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Queries times keys, and that times values; shapes [N, heads, tokens, channels]."""
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return 2 * pairs * (query.shape[-1] + value.shape[-1])


@contextmanager
def counted(pipe: Any) -> Iterator[Operations]:
    """Count the operations of a pipeline's networks (not of its text encoders and decoder) for a `with` block.

    What a method does in the place of a network's parts is counted where it happens within a call of the network.
    """
    operations = Operations()

    def begin(*_: Any) -> None:
        operations.__enter__()  # type: ignore[no-untyped-call]

    def end(*_: Any) -> None:
        operations.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    with ExitStack() as undo:
        for module in denoisers(pipe).values():
            undo.callback(module.register_forward_pre_hook(begin).remove)
            undo.callback(module.register_forward_hook(end, always_call=True).remove)
        yield operations
