"""Samples: keyword arguments of a pipeline's `__call__`, one set per sample."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from budcache.errors import SearchError

__all__ = [
    "SETTINGS",
    "are_mixed",
    "digest",
    "fresh",
    "has_negative",
    "is_own",
    "runs_of",
    "seeded",
    "settings_of",
    "settings_of_all",
    "split",
    "take_samples",
]

# What pipelines call the settings that a policy's origin has a field for.
SETTINGS = {
    "height": "height",
    "width": "width",
    "num_frames": "frames",
    "guidance_scale": "guidance",
    "true_cfg_scale": "true_guidance",
}


def take_samples(
    prompts: Sequence[str], samples: Sequence[Mapping[str, Any]], call: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Prompts or samples, whichever were given, as keyword arguments of the pipeline, one set per sample."""
    if isinstance(prompts, str):
        prompts = [prompts]
    if prompts and samples:
        raise SearchError("prompts and samples were both given. A sample may have a prompt: put them there.")
    given = [{**(call or {}), **sample} for sample in (samples or [{"prompt": prompt} for prompt in prompts])]
    if not given:
        raise SearchError("there are no prompts to calibrate on. Give a few, eight or so, as different as your use.")
    return given


def split(samples: Sequence[Any], selection: int | None) -> int:
    """How many of the samples to search on; the last ones, a quarter if not told otherwise, are for selection."""
    kept_out = len(samples) // 4 if selection is None else selection
    if not 0 <= kept_out < len(samples):
        raise SearchError(
            f"{kept_out} of {len(samples)} samples for selection leave none to learn from. "
            f"Choose a selection of {len(samples) - 1} at most, or give more prompts."
        )
    return len(samples) - kept_out


def runs_of(samples: Sequence[Any], batch: int) -> int:
    """In how many runs so many samples are made, if all can be batched."""
    return -(-len(samples) // max(batch, 1))


def seeded(sample: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A sample that begins from noise of a seed, unless it says itself where to begin."""
    import torch

    if sample.get("generator") is not None or sample.get("latents") is not None:
        return dict(sample)
    return {**sample, "generator": torch.Generator("cpu").manual_seed(seed)}


def settings_of(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What of a sample's arguments a policy's origin has a field for."""
    off = () if has_negative(sample) else ("true_guidance",)
    return {
        ours: sample[named] for named, ours in SETTINGS.items() if sample.get(named) is not None and ours not in off
    }


def has_negative(sample: Mapping[str, Any]) -> bool:
    """Whether there is a second prompt, without which a pipeline's true guidance is not at work."""
    return any(sample.get(name) is not None for name in ("negative_prompt", "negative_prompt_embeds"))


def settings_of_all(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The same of all samples together; of numbers that differ the range. What is not at work is None."""
    each = [settings_of(sample) for sample in samples]
    found: dict[str, Any] = {} if any(map(has_negative, samples)) else {"true_guidance": None}
    found |= each[0]
    ranges: dict[str, tuple[float, float]] = {}
    for name in dict.fromkeys(name for one in each for name in one):
        values = [one[name] for one in each if name in one]
        if len(values) < len(each) or min(values) != max(values):
            found[name], ranges[name] = None, (float(min(values)), float(max(values)))
    return found | ({"ranges": ranges} if ranges else {})


def are_mixed(samples: Sequence[Mapping[str, Any]]) -> bool:
    """Whether samples were made with several settings: other sizes, guidance, scales of adapters."""
    settings = [{name: value for name, value in sample.items() if not is_own(name, value)} for sample in samples]
    return len({digest([each]) for each in settings}) > 1


def is_own(name: str, value: Any) -> bool:
    """Whether an argument is a sample's own, not a setting: prompts, pictures, tensors and generators."""
    return (
        (isinstance(value, str) and "prompt" in name)
        or hasattr(value, "initial_seed")
        or hasattr(value, "convert")
        or getattr(value, "ndim", 0) > 0
    )


def digest(samples: Sequence[Mapping[str, Any]]) -> str:
    """A short name for a set of samples, the same wherever they are the same."""
    digest = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            digest.update(name.encode())
            digest.update(json.dumps(_contents(sample[name]), default=repr).encode())
    return digest.hexdigest()[:16]


def _contents(value: Any) -> Any:
    """A value as JSON can hold it; tensors, arrays and pictures by a digest, wherever in lists or mappings they are."""
    import numpy as np

    if isinstance(value, Mapping):
        return {str(name): _contents(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_contents(each) for each in value]
    if hasattr(value, "initial_seed"):
        return value.initial_seed()
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    if hasattr(value, "tobytes"):
        array = np.asarray(value)
        return [array.shape, array.dtype.str, hashlib.sha256(array.tobytes()).hexdigest()]
    return value


def fresh(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A sample whose generators are copies: a run uses a generator up, and the next is to start at the same noise."""
    return {name: _fresh(value) for name, value in sample.items()}


def _fresh(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(hasattr(each, "initial_seed") for each in value):
        return [_fresh(each) for each in value]
    if hasattr(value, "initial_seed"):
        twin = type(value)(value.device)
        twin.set_state(value.get_state())
        return twin
    return value
