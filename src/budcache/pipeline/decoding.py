"""Final latents as pictures, without a model call.

A pipeline decodes inside its `__call__`, behind its loop, in its own way: unpacking, scaling, the VAE, postprocessing.
To decode other latents the call is made once more, but nothing that was computed on the way to the loop is computed
again: its networks answer with what they said when the pipeline was opened. Only what lies behind the loop really runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from budcache.numerics.memory import park, unpark

__all__ = ["Networks"]


class Networks:
    """The networks of a pipeline's copy, which remember what they were asked before and in the first step.

    Args:
        twin: a shallow copy of a pipeline; its networks are replaced by ones that look the same and remember.
    """

    def __init__(self, twin: Any) -> None:
        parts = {name: part for name, part in twin.components.items() if isinstance(part, nn.Module)}
        self._parts = {name: _Remembering(part) for name, part in parts.items()}
        vars(twin).update(self._parts)

    def listen(self, on: bool) -> None:
        """Remember answers from now on, or no longer."""
        for part in self._parts.values():
            vars(part)["_listening"] = on

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let the networks repeat their answers, in the order in which they gave them."""
        for part in self._parts.values():
            vars(part)["_script"] = iter(vars(part)["_answers"])
        try:
            yield
        finally:
            for part in self._parts.values():
                vars(part)["_script"] = iter(())


class _Remembering:
    """A network that looks like the one it stands for, also to `isinstance`."""

    def __init__(self, network: nn.Module) -> None:
        vars(self).update(_network=network, _answers=[], _listening=False, _script=iter(()))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(vars(self)["_network"])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer(vars(self)["_network"], *args, **kwargs)

    def _answer(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        own = vars(self)
        for answer in own["_script"]:
            return unpark(answer)
        answer = function(*args, **kwargs)
        if own["_listening"]:
            own["_answers"].append(park(answer))
        return answer

    def __getattr__(self, name: str) -> Any:
        found = getattr(vars(self)["_network"], name)
        # The one other way in which pipelines evaluate a network before their loop: pictures to begin with.
        return partial(self._answer, found) if name == "encode" else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_network"], name, value)

    def __delattr__(self, name: str) -> None:  # accelerate takes its hooks off again
        delattr(vars(self)["_network"], name)
