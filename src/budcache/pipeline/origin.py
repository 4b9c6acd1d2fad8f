"""What a policy was made on, and whether a pipeline is that."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from budcache.pipeline.adapters import adapters, are_fused
from budcache.pipeline.arguments import arguments, usual_frames, usual_size
from budcache.pipeline.counting import guiders
from budcache.pipeline.parts import bare, denoisers
from budcache.pipeline.standin import StandIn
from budcache.policy import Origin
from budcache.provenance import same_adapters

__all__ = ["describe", "difference", "expects_two", "guidance_of", "usual_guidance"]

PROBED_VALUES = 8


def describe(pipe: Any, **more: Any) -> Origin:
    """The origin of a policy made on `pipe`; `more` are the fields that the pipeline cannot know."""
    import diffusers

    import budcache

    scheduler = pipe.scheduler.inner if isinstance(pipe.scheduler, StandIn) else pipe.scheduler
    plain = type(scheduler)().config
    settings = {
        key: value
        for key, value in scheduler.config.items()
        if not key.startswith("_") and plain.get(key) != value and isinstance(value, str | int | float | bool)
    }
    versions = {"budcache": budcache.__version__, "diffusers": diffusers.__version__, "torch": torch.__version__}
    height, width = usual_size(pipe) or (None, None)
    known = {
        "model": _model(pipe),
        "pipeline": type(pipe).__name__,
        "denoiser": _denoiser(pipe),
        "weights": _fingerprint(pipe),
        "adapters": adapters(pipe),
        "guidance": usual_guidance(pipe),
        "true_guidance": _usual_true_guidance(pipe),
        "height": height,
        "width": width,
        "frames": usual_frames(pipe),
        "scheduler": type(scheduler).__name__,
        "scheduler_settings": settings,
        "versions": versions,
    }
    return Origin(**{**known, **more})


def usual_guidance(pipe: Any) -> float | None:
    """The guidance scale that a pipeline takes if it is told none."""
    return _scale(pipe, arguments(pipe).get("guidance_scale"))


def _usual_true_guidance(pipe: Any) -> float | None:
    """Likewise between two prompts, where that is another scale; whether it is at work is up to the prompts."""
    scale = arguments(pipe).get("true_cfg_scale")
    return float(scale) if isinstance(scale, int | float) and scale > 1 else None


def guidance_of(pipe: Any) -> float | None:
    """The guidance scale of the run that a pipeline is in, where it or its guider keeps it."""
    return _scale(pipe, getattr(pipe, "_guidance_scale", None))


def _scale(pipe: Any, own: Any) -> float | None:
    """A pipeline's own scale if it has one, else that of its guider."""
    scales = [own, *(getattr(each, "guidance_scale", None) for each in guiders(pipe).values())]
    return next((float(scale) for scale in scales if isinstance(scale, int | float)), None)


def expects_two(pipe: Any, call: Mapping[str, Any]) -> bool:
    """Whether a pipeline is likely to run its network for two branches; for sure that is known once it has run."""
    if found := guiders(pipe):
        return any(getattr(guider, "num_conditions", 1) == 2 for guider in found.values())
    known = arguments(pipe)
    true = "true_cfg_scale" in known  # beside it, `guidance_scale` is a number that the network is told
    name = "true_cfg_scale" if true else "guidance_scale"
    scale = call.get(name, known.get(name))
    told = any(getattr(getattr(part, "config", None), "guidance_embeds", False) for part in denoisers(pipe).values())
    above = isinstance(scale, int | float) and scale > 1
    return above and (bool(call.get("negative_prompt")) if true else not told)


def difference(origin: Origin, pipe: Any) -> str | None:
    """How `pipe` differs from the model that a policy was made on, as a clause; None if it does not."""
    here = adapters(pipe)
    if not same_adapters(origin.adapters, here):
        was, has = (", ".join(names) or "none" for names in (origin.adapters, here))
        return f"it was made with adapters: {was}; this pipeline has: {has}"
    if origin.denoiser is not None and origin.denoiser != _denoiser(pipe):
        return f"it was made on {origin.denoiser}, this is {_denoiser(pipe)}"
    if origin.weights is not None:
        now = _fingerprint(pipe)
        if now is not None and now != origin.weights:
            made_on = f"{origin.model}, which has" if origin.model else "a model with"
            return f"it was made on {made_on} other weights than this one"
    return None


def _model(pipe: Any) -> str | None:
    """The hub id, or the name of the folder: where that folder lies is nobody's business but this machine's."""
    # A modular pipeline has its own name for it.
    name = str(getattr(pipe, "name_or_path", None) or getattr(pipe, "_pretrained_model_name_or_path", None) or "")
    return (Path(name).name if Path(name).is_dir() else name) or None


def _denoiser(pipe: Any) -> str:
    return ", ".join(type(bare(module)).__name__ for module in denoisers(pipe).values())


def _fingerprint(pipe: Any) -> str | None:
    """A hash over a few numbers of every weight: the same in float32, bfloat16 and under a LoRA.

    None where they cannot be seen: offloaded to disk, or under a LoRA that was fused into them. Of such a LoRA the
    adapters tell, as long as it is there.
    """
    if are_fused(pipe):
        return None
    digest = hashlib.sha256()
    for module in denoisers(pipe).values():
        named = {
            name.replace(".base_layer.", "."): parameter
            for name, parameter in bare(module).named_parameters()
            if parameter.is_floating_point() and "lora_" not in name
        }
        for name, parameter in sorted(named.items()):
            if parameter.is_meta:
                return None
            values = parameter.detach().flatten()[:PROBED_VALUES].to("cpu", torch.bfloat16)
            digest.update(name.encode())
            digest.update(bytes(values.view(torch.uint8).tolist()))
    return digest.hexdigest()[:16]
