"""What a job has to know of a pipeline, as a value that can be told to another process."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from budcache.pipeline.arguments import arguments, is_modular
from budcache.pipeline.origin import describe
from budcache.policy import Origin

__all__ = ["About", "Taken", "taken_by"]


@dataclass(frozen=True)
class Taken:
    """Which arguments a pipeline takes.

    Attributes:
        kind: its class.
        names: of the arguments.
        anything: whether it takes others as well.
    """

    kind: str
    names: tuple[str, ...]
    anything: bool


@dataclass(frozen=True)
class About:
    """A pipeline as jobs see it.

    Attributes:
        origin: what policies that are made on it say of where they came from.
        taken: the arguments that it takes.
        number_format: of its weights.
    """

    origin: Origin
    taken: Taken
    number_format: str

    @classmethod
    def of(cls, pipe: Any) -> About:
        """Look at a pipeline."""
        number_format = str(getattr(pipe, "dtype", None)).removeprefix("torch.")
        return cls(describe(pipe), taken_by(pipe), number_format)


def taken_by(pipe: Any) -> Taken:
    """Which arguments a pipeline takes."""
    parameters = inspect.signature(type(pipe).__call__).parameters.values()
    anything = not is_modular(pipe) and any(each.kind is each.VAR_KEYWORD for each in parameters)
    return Taken(type(pipe).__name__, tuple(arguments(pipe)), anything)
