"""Policies of every kind, small enough to read, and what they draw under `budcache.applied`."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import budcache
from budcache import Origin, Policy, Quality, Refined, models
from budcache.rows import Features, Row

STEPS, SIZE = 12, 64
MASK = "110100100100"
CALLS = MASK.count("1")
PROMPT = {"prompt": "red apple", "height": SIZE, "width": SIZE, "max_sequence_length": 16, "guidance_scale": 3.5}
SIGMAS = (1.0, 0.97, 0.93, 0.88, 0.83, 0.77, 0.7, 0.62, 0.53, 0.42, 0.29, 0.14, 0.0)
SETTINGS = {"use_dynamic_shifting": True, "shift": 3.0}
LEVELS = (
    *(1.0, 0.94659, 0.88967, 0.82887, 0.76379, 0.69397, 0.61885, 0.53782, 0.45015, 0.355, 0.25136, 0.13803),
    0.0,
)
ORIGIN = Origin(
    model="tiny-flux",
    pipeline="FluxPipeline",
    scheduler="FlowMatchEulerDiscreteScheduler",
    scheduler_settings=SETTINGS,
    height=SIZE,
    width=SIZE,
    guidance=3.5,
)
WEIGHTS = ((1.0,), (1.2, -0.2), (1.1, 0.05, -0.15), (1.3, -0.3), (1.05, -0.1, 0.05))


def _row(place: int, features: bool) -> Row:
    outputs = tuple([1.2, -0.25, 0.1, -0.06, 0.02][: place + 1]) if place else (1.02,)
    slopes = tuple((0.02 * (i + 1), -0.01, 0.015 / (i + 1)) for i in range(len(outputs) + 1))
    known = Features(middle=(-1.5, 0.02, 0.3), spread=(0.6, 0.1, 0.4), slopes=slopes) if features else None
    return Row(outputs=outputs, noise=0.004 * place - 0.006, features=known)


ROWS = tuple(_row(place, False) for place in range(CALLS))
LOOKING = tuple(_row(place, True) for place in range(CALLS))
GUIDED = tuple(Row(outputs=row.outputs, branch=(0.1,), noise=row.noise) for row in ROWS)


@cache
def stock() -> Any:
    """tiny-flux as any diffusers loads it."""
    from diffusers import FluxPipeline

    pipe = FluxPipeline.from_pretrained(models.folder("tiny-flux"), local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@cache
def levels() -> tuple[float, ...]:
    """tiny-flux's own at this size."""
    with budcache.PipelineModel(stock(), steps=STEPS, **PROMPT, generator=torch.Generator().manual_seed(0)) as run:
        return tuple(run.sigmas.tolist())


def policies(known: tuple[float, ...] = LEVELS) -> dict[str, Policy]:
    """One of every kind, made on some levels."""
    origin = ORIGIN.model_copy(update={"levels": known})
    told = {"quality": Quality(psnr=39.1, psnr_plain=34.4, samples=8), "refined": (Refined(how="fit", gain=0.75),)}
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "levels": {"sigmas": SIGMAS},
        "weights": {"weights": WEIGHTS, **told},
        "rows": {"rows": ROWS},
        "features": {"rows": LOOKING, "sigmas": SIGMAS},
        "guided": {"rows": ROWS, "guided": GUIDED},
        "residual": {"reuse": "residual"},
    }
    return {name: Policy(mask=MASK, origin=origin, **more) for name, more in kinds.items()}


def drawn(policy: Policy, pipe: Any = None, **more: Any) -> torch.Tensor:
    """The final latents of a run under a policy."""
    pipe = pipe or stock()
    with budcache.applied(pipe, policy):
        return run(pipe, **more)


def run(pipe: Any, **more: Any) -> torch.Tensor:
    """The final latents of a run."""
    call = {**PROMPT, "num_inference_steps": STEPS, "output_type": "latent", **more}
    return pipe(**call, generator=torch.Generator().manual_seed(0)).images
