"""A part of a pipeline that knows the pipeline."""

from __future__ import annotations

import copy
import weakref
from typing import Any

__all__ = ["Tie"]


class Tie:
    """A pipeline's own attribute that knows the pipeline: weakly, so that no cycle keeps its weights alive."""

    def __init__(self, pipe: Any) -> None:
        self.ref = _ref(pipe)

    @property
    def pipe(self) -> Any:
        """The pipeline, or None once it is gone: a shallow copy of it may have outlived it."""
        return None if self.ref is None else self.ref()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "ref": self.pipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, ref=_ref(state["ref"]))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A pipeline that is being copied is registered in `memo` before its attributes are copied.
        twin = copy.copy(self)
        twin.ref = _ref(memo.get(id(self.pipe), self.pipe))
        return twin


def _ref(pipe: Any) -> weakref.ref[Any] | None:
    return None if pipe is None else weakref.ref(pipe)
