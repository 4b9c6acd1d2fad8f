"""What is known of a policy beside what it does: where it came from, how good it is, what it went through."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, SerializerFunctionWrapHandler, Strict, model_serializer

from budcache.events import Scored
from budcache.mask import MAX_STEPS
from budcache.storage.schema import Count, Number, Seed, Settings, Text, Value
from budcache.wording import quote, several

__all__ = ["Origin", "Quality", "RangedSetting", "Refined", "Searched", "same_adapters"]


# What has to be the same for two policies to be rungs of one ladder.
SETTINGS = (
    *("model", "pipeline", "denoiser", "weights", "adapters", "scheduler", "scheduler_settings"),
    *("height", "width", "frames", "guidance", "true_guidance", "ranges", "teacher_steps", "switch"),
)
MAYBE_UNKNOWN = ("height", "width", "frames")  # of recorded runs, and of policies from before 0.2


RangedSetting: TypeAlias = Literal["height", "width", "frames", "guidance", "true_guidance"]


class Origin(Value):
    """Where a policy came from; all optional, for a policy may be written by hand."""

    model: Text | None = None  # hub id, folder or embedded name
    pipeline: Text | None = None  # class names, as the pipeline gave them
    denoiser: Text | None = None
    weights: Text | None = None  # fingerprint of the denoiser's weights
    adapters: Annotated[tuple[Text, ...], Field(fail_fast=True)] = ()  # LoRA adapters at work: name (contents) at scale
    scheduler: Text | None = None
    scheduler_settings: Settings = Field(default_factory=dict)  # only what differs from the class's defaults
    # The K + 1 effective noise levels of its full runs, if all had the same: what a policy without own sigmas goes by.
    levels: Annotated[tuple[Number, ...], Field(max_length=MAX_STEPS + 1, fail_fast=True)] = ()
    height: Count | None = None
    width: Count | None = None
    frames: Count | None = None
    guidance: Number | None = None
    # Between two prompts, where a pipeline has a scale for that beside `guidance` (true_cfg_scale) and it was at work.
    true_guidance: Number | None = None
    # Of settings that differed among the samples: the smallest and the largest; their own field is then empty.
    ranges: dict[RangedSetting, tuple[Number, Number]] = Field(default_factory=dict)
    prompts: Count | None = None  # how many, and a hash of which
    prompts_hash: Text | None = None
    seed: Seed | None = None
    strategy: Text | None = None
    teacher_steps: Count | None = None
    switch: Count | None = None  # the step at which the second expert takes over, for models that have two
    calls: Count | None = None  # model calls spent, teacher included
    versions: dict[Text, Text] = Field(default_factory=dict)

    def made_at(self, name: RangedSetting, usual: object = None) -> Any:
        """A setting of the runs; of a range what is nearest to the usual.

        Where nothing is usual, of scales the middle, and of sizes and frames, which cannot be just any, the least.
        """
        if name not in self.ranges:
            return getattr(self, name)
        (low, high), is_scale = self.ranges[name], name in ("guidance", "true_guidance")
        wanted = usual if isinstance(usual, int | float) else (low + high) / 2 if is_scale else low
        nearest = min(max(wanted, low), high)
        return nearest if is_scale else int(nearest)

    @model_serializer(mode="wrap")
    def _without_blanks(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value not in (None, [], (), {})}

    def __hash__(self) -> int:  # of what has one: dictionaries have none
        return hash((self.model, self.pipeline, self.denoiser, self.weights, self.adapters, self.scheduler))

    def difference(self, other: Origin, settings: Iterable[str] = SETTINGS) -> str | None:
        """In what two origins differ that a policy's quality depends on, as a clause; None if in nothing."""
        for name in settings:
            ours, theirs = getattr(self, name), getattr(other, name)
            if name in MAYBE_UNKNOWN and None in (ours, theirs):  # of ranges the field of that name tells
                continue
            if ours != theirs and not (name == "adapters" and same_adapters(ours, theirs)):
                return f"{name} is {quote(ours)} in one and {quote(theirs)} in the other"
        return None


def same_adapters(ours: Iterable[str], theirs: Iterable[str]) -> bool:
    """Whether two origins had the same adapters at work: by contents and scale where both tell them, else by name."""
    both = [[_ADAPTER.fullmatch(text) for text in texts] for texts in (ours, theirs)]
    if all(all(found) for found in both):
        first, second = (sorted(found["what"] for found in each if found) for each in both)
    else:  # written by hand, or before contents were looked at
        first, second = (sorted(text.partition(" (")[0] for text in texts) for texts in (ours, theirs))
    return first == second


_ADAPTER = re.compile(r".* \((?P<what>[0-9a-f]{8}\).*)")


class Quality(Value):
    """How near the policy comes to the full run: on its own prompts and on held-out ones."""

    calibration_loss: Number | None = None
    loss: Number | None = None  # held-out
    psnr: Number | None = None  # mean over held-out samples
    psnr_error: Number | None = None  # the standard error of that mean
    psnr_p5: Number | None = None  # 5th percentile over samples
    psnr_worst: Number | None = None
    # On the same samples, what is left where all but the mask is left out: outputs repeated on the pipeline's levels.
    psnr_plain: Number | None = None
    # And with the rows for the combined output of guidance, in the place of those for its branches apart.
    psnr_combined: Number | None = None
    samples: Count | None = None
    # Whether the policy was chosen by these very samples; what is measured on them is then optimistic.
    used_to_choose: Annotated[bool, Strict()] | None = None
    # Whether its mask and weights were found on them, too: then expect clearly less on new prompts.
    used_to_fit: Annotated[bool, Strict()] | None = None

    @property
    def short(self) -> str | None:
        """The PSNR for a table: mean and standard error; of samples that were fitted a bound, since new ones do worse.

        How much the samples scatter says nothing of new ones then, so it is left out.
        """
        if self.psnr is None:
            return None
        if self.used_to_fit:
            return f"< {self.psnr:.1f}"
        return f"{self.psnr:.1f}" + ("" if self.psnr_error is None else f" ± {self.psnr_error:.1f}")

    @property
    def text(self) -> str | None:
        """The PSNR as people read it: mean, standard error and number of samples; None without one."""
        if self.psnr is None:
            return None
        on = [] if self.samples is None else [several(self.samples, "sample")]
        on += ["that it was fitted on"] * bool(self.used_to_fit)
        return f"{self.short} dB" + (f" ({' '.join(on)})" if on else "")


class Refined(Value):
    """One refinement that a policy has gone through, and what it was worth."""

    how: Text  # "fit", "rows", "align", "align, joint"
    prompts: Count | None = None
    calls: Count | None = None  # sample-calls, those for choosing and measuring included
    gain: Number | None = None  # decibels of PSNR on held-out samples


@dataclass(frozen=True)
class Searched:
    """How a ladder came about."""

    history: tuple[Scored, ...]  # every mask that was scored, in order
    calls: int  # sample-calls: model calls times samples; teachers, selection and measuring included
    earlier: int  # those of them that runs before this one had spent, by the ledger
    seconds: float
    stopped: str | None  # the limit that ended it early, if one did
