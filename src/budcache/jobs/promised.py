"""What a policy promises of quality and speed, judged by a few runs; and the settings to try it at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from budcache.aggregate import mean
from budcache.comparison.timing import Speed
from budcache.policy import Origin, Policy, Quality
from budcache.samples.samples import SETTINGS, has_negative
from budcache.wording import several

__all__ = ["Promise", "quality", "settings_like", "speed_of"]

MARKS = {True: "✓", False: "✗", None: "?"}


@dataclass(frozen=True)
class Promise:
    """One promise: whether it was kept, and a sentence with the figures.

    Attributes:
        name: "calls", "plan", "removal", "quality" or "speed".
        kept: None where it cannot be told here.
        text: what was found.
    """

    name: str
    kept: bool | None
    text: str

    def __str__(self) -> str:
        return f"{MARKS[self.kept]} {self.name:8} {self.text}"


def settings_like(pipe: Any, policy: Policy, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that a policy was made at, of those that no sample names and the pipeline takes."""
    from budcache.pipeline.arguments import arguments

    origin, known = policy.origin or Origin(), arguments(pipe)
    named = {name for sample in samples for name in sample}
    found: dict[str, Any] = {}
    for group in (("height", "width"), ("num_frames",), ("guidance_scale",), ("true_cfg_scale",)):
        if named.isdisjoint(group):
            found |= {name: origin.made_at(SETTINGS[name], known[name]) for name in group if name in known}
    found = {name: value for name, value in found.items() if value is not None}
    if "true_cfg_scale" in found and not any(map(has_negative, samples)):
        found["negative_prompt"] = ""  # without one that scale would not be at work
    return found


def quality(
    policy: Policy, ratios: Sequence[float], settings: Mapping[str, Any], differs: str | None = None
) -> Promise:
    """What was measured on a few samples with some settings, against what a policy claims.

    A claim is a mean with its standard error; a few samples have one of their own, by the same spread. Two of both
    together below it, the claim is broken.
    """
    here = f"{mean(list(ratios)):.1f} dB on {several(len(ratios), 'sample')}"
    claim = policy.quality
    if claim is None or claim.psnr is None:
        return Promise("quality", None, f"{here}; the policy claims nothing")
    said = f"{here}; the policy says {claim.text}"
    room = _room(claim, len(ratios))
    if room is None:
        return Promise("quality", None, f"{said}, without a standard error to judge by")
    least = f"{claim.psnr - room:.1f} dB, the least that its uncertainty allows on {several(len(ratios), 'sample')}"
    if mean(list(ratios)) >= claim.psnr - room:
        return Promise("quality", True, f"{said}. That is above {least}")
    excuse = _excuse(policy, settings) or differs
    below = f"{said}. That is below {least}"
    return Promise("quality", None if excuse else False, below + (f"; but {excuse}" if excuse else ""))


def _room(claim: Quality, samples: int) -> float | None:
    if claim.psnr_error is None or not claim.samples:
        return None
    spread = claim.psnr_error * math.sqrt(claim.samples)
    return 2 * math.sqrt(claim.psnr_error**2 + spread**2 / samples)


def _excuse(policy: Policy, settings: Mapping[str, Any]) -> str | None:
    """Why a figure below the claim breaks no promise."""
    claim, origin = policy.quality, policy.origin
    if claim is not None and claim.used_to_fit:
        return "the policy was made on the samples of that figure, so on new prompts expect several dB less"
    if origin is not None and origin.teacher_steps not in (None, policy.steps):
        return f"its figure is to the run of {origin.teacher_steps} steps, this one to that of {policy.steps}"
    ranges = {} if origin is None else origin.ranges
    for name, value in settings.items():
        made = getattr(origin, name, None)
        low, high = next((ends for each, ends in ranges.items() if each == name), (made, made))
        if low is not None and high is not None and not low <= value <= high:
            where = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            return f"it was made at {name} {where}, this is {value:g}"
    return None


def speed_of(policy: Policy, found: Speed, per_call: float | None) -> Promise:
    """How much faster it is; who computes every step promises nothing."""
    each = "" if per_call is None else f"; {per_call:.3g} s a call"
    if not found.known:
        return Promise("speed", None, f"{found.text}{f' by {found.pairs} pairs' if found.pairs else ''}{each}")
    text = f"{found.text} ({found.low:.2f} to {found.high:.2f}) by {found.pairs} pairs of denoising loops{each}"
    if policy.budget == policy.steps:
        return Promise("speed", None, f"{text}; it computes every step, so none is promised")
    return Promise("speed", found.median > 1, text)
