"""Modules inside a trunk's blocks whose outputs a method forecasts one by one; see `base.Taps`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from budcache.baselines.base import Branch, Here, Taps
from budcache.errors import PipelineError
from budcache.pipeline.parts import bare
from budcache.pipeline.trunk import blocks_of, transformers

__all__ = ["Visit", "tapped"]


class Visit(NamedTuple):
    """A call of a transformer that has been decided, while its trunk is run."""

    branch: Branch
    here: Here
    compute: bool


@contextmanager
def tapped(pipe: Any, method: str, taps: Mapping[str, Taps], visit: Callable[[], Visit | None]) -> Iterator[None]:
    """Tap all blocks of a pipeline's trunks for the length of a `with` block.

    Args:
        pipe: the pipeline.
        method: whose taps they are, for messages.
        taps: what to tap, by class of block.
        visit: tells which call the modules are run in; None if nothing has been decided, and they run as they are.
    """
    with ExitStack() as undo:
        for transformer in transformers(pipe):
            for block in blocks_of(transformer):
                name = type(bare(block)).__name__
                if name not in taps:
                    raise PipelineError(
                        f"{method} knows what to forecast in {', '.join(sorted(taps))}, not in {name}. "
                        "Add its modules to the method's taps."
                    )
                for each in (*taps[name].forecast, *taps[name].blank):
                    module = getattr(block, each, None)
                    if module is None:
                        continue  # SD3's last block has no feed-forward for the text
                    own = module.__dict__.get("forward")
                    module.forward = _tap(module, visit, blank=each in taps[name].blank)
                    undo.callback(_restore, module, own)
        yield


def _tap(module: Any, visit: Callable[[], Visit | None], blank: bool) -> Callable[..., Any]:
    forward = module.forward
    shape: list[Any] = []

    def tap(*args: Any, **kwargs: Any) -> Any:
        now = visit()
        if now is None:
            return forward(*args, **kwargs)
        if now.compute:
            out = forward(*args, **kwargs)
            if blank:
                shape[:] = [out.shape[-1]]
            else:
                now.branch.tapped(id(module), now.here, out)
            return out
        if blank:  # its output feeds only modules whose own outputs are forecast
            given: Tensor = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
            return given.new_zeros(1).expand(*given.shape[:-1], *shape)
        return now.branch.forecast(id(module), now.here)

    return tap


def _restore(module: Any, own: Any) -> None:
    if own is None:
        del module.forward
    else:
        module.forward = own
