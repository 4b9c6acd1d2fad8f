"""Samples drawn once more, under a method or without one, and how near their pictures are to those of the full runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from budcache.metrics import psnr
from budcache.metrics.base import Frame
from budcache.samples.batch import merge
from budcache.storage import media

__all__ = ["Sample", "call", "drawn", "fresh", "ratio"]

Sample = Mapping[str, Any]


def drawn(pipe: Any, samples: Sequence[Sample], steps: int) -> list[NDArray[np.float16]]:
    """The pictures or videos of some samples, run as one."""
    output = pipe(**call(samples, steps, "np"))
    return [np.asarray(picture, np.float16) for picture in media.samples(output)]


def call(samples: Sequence[Sample], steps: int, output_type: str = "latent") -> dict[str, Any]:
    """The call of a pipeline that runs some samples once more, as one."""
    merged = merge([fresh(sample) for sample in samples]) if len(samples) > 1 else fresh(samples[0])
    return {**merged, "num_inference_steps": steps, "output_type": output_type}


def fresh(sample: Sample) -> dict[str, Any]:
    """A sample whose generators are copies: a run uses a generator up, and the next is to start at the same noise."""
    return {name: _fresh(value) for name, value in sample.items()}


def _fresh(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Generator) for each in value):
        return [_fresh(each) for each in value]
    if isinstance(value, torch.Generator):
        twin = torch.Generator(value.device)
        twin.set_state(value.get_state())
        return twin
    return value


def ratio(picture: Frame, full: Frame) -> float:
    """The PSNR of a picture to the full run's."""
    found = psnr(picture, full)
    return found if math.isfinite(found) else 0.0  # a broken picture, as far away as values from 0 to 1 can be
