"""Other runtimes: policies in the form that each of them reads, one file a target, and policies that others made."""

from __future__ import annotations

from budcache.exports.base import Made, Target, Task
from budcache.exports.cachedit import CacheDiT
from budcache.exports.comfyui import ComfyUI
from budcache.exports.diffsynth import DiffSynth
from budcache.exports.diffusers import Diffusers
from budcache.exports.magcache import MagCache
from budcache.exports.mflux import Mflux
from budcache.exports.sdcpp import Sdcpp
from budcache.exports.sigmas import Sigmas

__all__ = ["TARGETS", "Made", "Target", "Task"]

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        *(ComfyUI(), Diffusers(), CacheDiT(), MagCache()),
        *(Sdcpp(), Mflux(), DiffSynth(), Sigmas()),
    )
}
