"""The noise levels of a policy's runs at a size: those of its full runs there, and its own moved along with them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from budcache.errors import PolicyError
from budcache.plan import own_levels
from budcache.policy import Origin, Policy

__all__ = ["Levels", "levels_for"]

Size = tuple[int, int]

# What FlowMatchEulerDiscreteScheduler takes if it is told nothing; an origin has only what differs from that.
SHIFTING = {"base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256, "max_image_seq_len": 4096}
ASK = "Name the model with --pipeline (pipeline= in Python), and its levels are taken from there."


class Levels(NamedTuple):
    """The K + 1 effective levels of a run: those that a policy goes by, and those that the pipeline itself has.

    The second are empty where they are not known and nothing depends on them.
    """

    own: tuple[float, ...]
    full: tuple[float, ...] = ()


def levels_for(policy: Policy, size: Size | None, pipe: Any = None) -> Levels:
    """The levels of a run at a size (height, width); None is the size that the policy was made at.

    They are those that serving has: a policy's own are moved as the pipeline moves its own.
    """
    origin = policy.origin or Origin()
    if policy.sigmas is not None and not origin.levels:
        if size is not None and size != (origin.height, origin.width):
            raise PolicyError("this policy does not say for which size its noise levels are. Leave the size out.")
        return Levels(policy.sigmas)
    full = _full(origin, size) if pipe is None else _asked(policy, origin, size, pipe)
    return Levels(full if policy.sigmas is None else own_levels(policy, full), full)


def _full(origin: Origin, size: Size | None) -> tuple[float, ...]:
    """The levels of a full run, by what the policy knows."""
    if not origin.levels:
        raise PolicyError(f"this policy does not say on which noise levels it was made. {ASK}")
    shifted = origin.scheduler_settings.get("use_dynamic_shifting")
    if size is None or size == (origin.height, origin.width) or not shifted:
        return origin.levels
    return _moved(origin, size)


def _asked(policy: Policy, origin: Origin, size: Size | None, pipe: Any) -> tuple[float, ...]:
    """The levels that a pipeline itself makes, held open at its first step."""
    import torch

    from budcache.pipeline import PipelineModel

    height, width = size or (origin.height, origin.width)
    call: dict[str, Any] = {name: value for name, value in (("height", height), ("width", width)) if value is not None}
    with PipelineModel(pipe, steps=policy.steps, prompt="", generator=torch.Generator().manual_seed(0), **call) as run:
        return tuple(run.sigmas.tolist())


def _moved(origin: Origin, size: Size) -> tuple[float, ...]:
    """Levels at another size, for schedulers that shift them by the number of latent tokens.

    How far the origin's levels were shifted is read off them, from that the number of tokens at its size; so nothing
    has to be known of the model, and what does not fit is refused.
    """
    settings = {**SHIFTING, **origin.scheduler_settings}
    slope = (settings["max_shift"] - settings["base_shift"]) / (
        settings["max_image_seq_len"] - settings["base_image_seq_len"]
    )
    tokens = (_shift_of(origin, settings) - settings["base_shift"]) / slope + settings["base_image_seq_len"]
    pixels = origin.height * origin.width if origin.height and origin.width else 0
    if not pixels:
        raise PolicyError(f"this policy does not say at which size it was made, so not what another one changes. {ASK}")
    patch = math.sqrt(pixels / tokens) if tokens > 0 else 0.0
    if patch < 1 or abs(patch - round(patch)) > 0.01:
        raise PolicyError(f"this policy's noise levels do not follow from its size in a way that is known here. {ASK}")
    rows, columns = size[0] // round(patch), size[1] // round(patch)
    shift = settings["base_shift"] + slope * (rows * columns - settings["base_image_seq_len"])
    return _shifted(len(origin.levels) - 1, shift, settings)


def _shift_of(origin: Origin, settings: dict[str, Any]) -> float:
    """By how much the origin's levels were shifted."""
    steps = len(origin.levels) - 1
    middle, low, high = steps // 2, -20.0, 20.0
    while high - low > 1e-12:  # the more they are shifted, the higher they are
        half = (low + high) / 2
        low, high = (half, high) if _shifted(steps, half, settings)[middle] < origin.levels[middle] else (low, half)
    again = _shifted(steps, low, settings)
    if max(abs(a - b) for a, b in zip(again, origin.levels, strict=True)) > 1e-5:
        raise PolicyError(f"this policy's noise levels are not shifted in a way that is known here. {ASK}")
    return low


def _shifted(steps: int, shift: float, settings: dict[str, Any]) -> tuple[float, ...]:
    """Even levels from 1 to 1 / K, shifted, and 0 behind them."""
    by = math.exp(shift) if settings.get("time_shift_type", "exponential") == "exponential" else shift
    levels = [by / (by + steps / (steps - k) - 1) for k in range(steps)]
    terminal = settings.get("shift_terminal")
    if terminal:
        scale = (1 - levels[-1]) / (1 - terminal)
        levels = [1 - (1 - level) / scale for level in levels]
    return (*levels, 0.0)
