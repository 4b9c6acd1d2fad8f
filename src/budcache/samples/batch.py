"""Calibration samples: keyword arguments of a pipeline's `__call__`, one set per sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from budcache.errors import PipelineError
from budcache.samples.samples import digest, is_own

__all__ = ["batches", "merge"]


def batches(samples: Sequence[Mapping[str, Any]], size: int) -> list[list[Mapping[str, Any]]]:
    """Samples in batches: those with the same settings together, in the order of the first of each."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for sample in samples:
        settings = {name: value for name, value in sample.items() if not is_own(name, value)}
        alike.setdefault(digest([settings]) if size > 1 else "", []).append(sample)
    return [group[begin : begin + size] for group in alike.values() for begin in range(0, len(group), size)]


def merge(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One call for several samples: prompts, images and generators become lists, tensors batches.

    What cannot be different within one call (sizes, guidance) must be the same in all samples.
    """
    if not samples:
        raise PipelineError("there are no samples. Pass at least one prompt.")
    first = samples[0]
    for number, sample in enumerate(samples[1:], start=1):
        if odd := sorted(set(first) ^ set(sample)):
            raise PipelineError(
                f"samples 0 and {number} differ in having {odd[0]!r}, so they cannot run as one batch. "
                "Give it to all, or run them one at a time."
            )
    return {name: _together(name, [sample[name] for sample in samples]) for name in first}


def _together(name: str, values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor) and is_own(name, first):
        if len({value.shape[1:] for value in values}) > 1:
            raise PipelineError(f"{name} has another shape in each sample. Run the samples one at a time.")
        return torch.cat(values)
    if is_own(name, first):
        return values
    for number, value in enumerate(values):
        if value != first:
            raise PipelineError(
                f"{name} is {first!r} in sample 0 but {value!r} in sample {number}, and one batch has only one. "
                "Run the samples one at a time."
            )
    return first
