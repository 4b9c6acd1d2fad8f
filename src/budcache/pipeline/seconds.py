"""By time: how long a pipeline takes, measured once and kept beside the ladder, and the rung that fits into it."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from budcache.errors import BudcacheError, PipelineError, PolicyError
from budcache.mask import Mask
from budcache.pipeline.arguments import arguments
from budcache.pipeline.clock import Clock, Lap
from budcache.pipeline.parts import bare, denoisers, device_of, is_compiled
from budcache.policy import Ladder, Policy
from budcache.samples.prompts import TRIED
from budcache.samples.samples import fresh, seeded
from budcache.storage.files import read_json, write_json
from budcache.storage.schema import Count, Number, Settings, Text, Value
from budcache.wording import several

__all__ = ["MeasuredOn", "Timing", "fitting", "kept_beside", "kept_timings", "measured", "to_time"]

logger = logging.getLogger("budcache")

MOST_RUNS, ENOUGH_SECONDS = 5, 10.0  # timed runs, and the time after which no more are made
MOST_KEPT = 64  # measurements in a file


class MeasuredOn(Value):
    """What a measurement holds for: another size, batch, device or library wants one of its own."""

    device: Text
    dtype: Text
    threads: Count | None = None  # of a CPU
    pipeline: Text
    denoiser: Text
    parameters: Count  # of the denoisers: pipelines of one class have models of many sizes
    state: tuple[Text, ...] = ()  # "compiled", "offloaded", "quantised"
    call: Settings = Field(default_factory=dict)  # numbers and names among the pipeline's arguments: size, guidance
    batch: Count = 1
    versions: dict[str, Text] = Field(default_factory=dict)

    @classmethod
    def of(cls, pipe: Any, call: Mapping[str, Any]) -> MeasuredOn:
        """What a run of a pipeline with some arguments is timed on."""
        import diffusers
        import torch

        device = device_of(pipe)
        networks = [bare(module) for module in denoisers(pipe).values()]
        values = [value for network in networks for value in network.parameters()]
        return cls(
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            dtype=", ".join(sorted({str(value.dtype).removeprefix("torch.") for value in values})),
            threads=torch.get_num_threads() if device.type == "cpu" else None,
            pipeline=type(pipe).__name__,
            denoiser=", ".join(type(network).__name__ for network in networks),
            parameters=sum(value.numel() for value in values),
            state=tuple(_state(pipe)),
            call=_plain(call),
            batch=_batch(call),
            versions={"torch": str(torch.__version__), "diffusers": diffusers.__version__},
        )


class Timing(Value):
    """What one run takes, in seconds: medians of a few.

    Attributes:
        before: text encoders, and whatever else comes before the first model call.
        call: one model call, with what the scheduler does after it.
        after: the decoder.
    """

    on: MeasuredOn
    before: Annotated[Number, Field(ge=0)]
    call: Annotated[Number, Field(gt=0)]
    after: Annotated[Number, Field(ge=0)]
    runs: Count

    def seconds(self, calls: int) -> float:
        """What a run of so many calls takes."""
        return self.before + calls * self.call + self.after

    def text(self, calls: int) -> str:
        """The same as a sum."""
        return f"{self.before:.3g} s + {calls} x {self.call:.3g} s + {self.after:.3g} s = {self.seconds(calls):.3g} s"


class Timings(Value):
    """The file beside a ladder."""

    kind: Literal["timings"] = "timings"
    version: Annotated[int, Strict(), Field(ge=1, le=1)] = 1
    timings: Annotated[tuple[Timing, ...], Field(max_length=MOST_KEPT, fail_fast=True)] = ()


# Of ladders that are in no file of ours, but in memory or on the hub: what was measured in this process.
_measured: weakref.WeakKeyDictionary[Any, dict[str, Timing]] = weakref.WeakKeyDictionary()


def kept_beside(path: Path) -> Path:
    """Where the measurements of a ladder's file are kept."""
    return path.with_name(f"{path.name.removesuffix('.json')}.timings.json")


def to_time(pipe: Any, call: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of a run to be timed: those that were given, and a prompt."""
    known, given = arguments(pipe), dict(call or {})
    for name in given:
        if name not in known:
            raise PipelineError(f"{type(pipe).__name__} takes no argument {name!r}. Leave it out of call.")
    prompt = {"prompt": TRIED[0]} if "prompt" in known and not {"prompt", "prompt_embeds"} & set(given) else {}
    return prompt | given


def measured(
    pipe: Any,
    call: Mapping[str, Any],
    run: Callable[[Mapping[str, Any]], int],
    file: Path | None = None,
    again: bool = False,
) -> Timing:
    """How long a pipeline takes: as it is kept, or measured now.

    Args:
        pipe: the pipeline.
        call: its arguments.
        run: runs it with arguments, and returns the model calls that it made.
        file: of the ladder, beside which measurements are kept; None keeps them for this process.
        again: whether to measure even if there is one that holds.
    """
    on = MeasuredOn.of(pipe, call)
    file = None if file is None else kept_beside(file)
    kept = kept_timings(file) if file is not None else tuple(_measured.get(pipe, {}).values())
    found = None if again else next((timing for timing in kept if timing.on == on), None)
    if found is not None:
        return found
    timing = _measure(pipe, on, call, run)
    if file is None:
        _measured.setdefault(pipe, {})[on.model_dump_json()] = timing
        return timing
    others = tuple(other for other in kept if other.on != on)
    made = Timings(timings=(*others, timing)[-MOST_KEPT:])
    try:
        write_json(file, made.model_dump(mode="json", exclude_none=True))
    except BudcacheError as error:  # a read-only folder is no reason not to serve
        logger.warning("the measurement is not kept: %s", error)
    return timing


def fitting(ladder: Ladder, timing: Timing, seconds: float) -> tuple[Policy, str]:
    """The largest rung that fits into some seconds, and a sentence that says why.

    Where all steps fit it is the full run: no rung can be nearer to it.
    """
    steps, smallest = ladder.steps, ladder.budgets[0]
    if timing.seconds(steps) <= seconds:
        return Policy(mask=Mask.full(steps)), (
            f"the full run of {several(steps, 'call')} fits into {seconds:g} s: {timing.text(steps)}."
        )
    fits = [rung for rung in ladder if timing.seconds(rung.budget) <= seconds]
    if not fits:
        least = math.ceil(100 * timing.seconds(smallest) - 1e-6) / 100
        raise PolicyError(
            f"even the smallest rung, {several(smallest, 'call')}, takes {timing.seconds(smallest):.3g} s here "
            f"({timing.text(smallest)}), but there are {seconds:g} s. "
            f"Give {least:g} seconds, or search smaller budgets."
        )
    taken = fits[-1]
    larger = [*(rung.budget for rung in ladder if rung.budget > taken.budget), steps][0]
    return taken, (
        f"{taken.budget} of {steps} calls fit into {seconds:g} s: {timing.text(taken.budget)}; "
        f"the next, {larger} calls, would take {timing.seconds(larger):.3g} s."
    )


def _measure(pipe: Any, on: MeasuredOn, call: Mapping[str, Any], run: Callable[[Mapping[str, Any]], int]) -> Timing:
    clock, laps, made = Clock(pipe), list[Lap](), list[int]()
    try:
        run(_seeded(pipe, call))  # whatever is set up or compiled with the first picture
        while not laps or (len(laps) < MOST_RUNS and sum(sum(lap[:3]) for lap in laps) < ENOUGH_SECONDS):
            calls, lap = clock.time(lambda: run(_seeded(pipe, call)))
            laps.append(lap)
            made.append(max(calls, 1))
    except BudcacheError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise PipelineError(
            f"the pipeline cannot be timed: {' '.join(str(error).split()) or type(error).__name__} "
            "Give the arguments that it needs as call={...}."
        ) from error
    return Timing(
        on=on,
        before=max(0.0, median(lap.before for lap in laps)),
        call=max(1e-9, median(lap.loop / calls for lap, calls in zip(laps, made, strict=True))),
        after=max(0.0, median(lap.after for lap in laps)),
        runs=len(laps),
    )


def _seeded(pipe: Any, call: Mapping[str, Any]) -> dict[str, Any]:
    """The program's own random numbers go on as if nothing had been timed."""
    return fresh(seeded(call, 0)) if "generator" in arguments(pipe) else fresh(call)


def kept_timings(file: Path) -> tuple[Timing, ...]:
    """The measurements in a file; none where there is no such file."""
    if not file.exists():
        return ()
    try:
        return Timings.model_validate(read_json(file)).timings
    except PolicyError as error:
        raise PolicyError(f"{file} holds no timings: {error} Remove it, and they are measured again.") from None


def _plain(call: Mapping[str, Any]) -> dict[str, Any]:
    """What of the arguments a measurement depends on, as far as JSON can say it; never a prompt."""
    found: dict[str, Any] = {}
    for name, value in sorted(call.items()):
        if "prompt" in name and name != "num_images_per_prompt" and not name.startswith(("num_", "max_")):
            if name.startswith("negative"):
                found[name] = value is not None  # guidance by two branches may hang on it
        elif isinstance(value, bool | int | float | str):
            found[name] = value
        elif value is not None and hasattr(value, "size"):
            size = value.size if not callable(value.size) else value.size()
            found[name] = [int(each) for each in size] if isinstance(size, tuple) else int(size)
    return found


def _batch(call: Mapping[str, Any]) -> int:
    prompt, embeds = call.get("prompt"), call.get("prompt_embeds")
    prompts = len(prompt) if isinstance(prompt, list | tuple) else len(embeds) if embeds is not None else 1
    each = call.get("num_images_per_prompt") or call.get("num_videos_per_prompt") or 1
    return prompts * int(each)


def _state(pipe: Any) -> list[str]:
    networks = list(denoisers(pipe).values())
    marks = {
        "compiled": any(map(is_compiled, networks)),
        "offloaded": any(getattr(bare(network), "_hf_hook", None) is not None for network in networks),
        "quantised": any(getattr(bare(network), "is_quantized", False) for network in networks),
    }
    return [mark for mark, holds in marks.items() if holds]
