"""Running zoo pipelines the same way everywhere."""

from __future__ import annotations

import signal
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from diffusers import ModularPipeline
from zoo import Entry, entry

from budcache import BudcacheWarning, PipelineModel, Policy
from budcache.numerics.rollout import rollout
from budcache.plan import Plan

STEPS = 6


def flux() -> tuple[Entry, Any]:
    """The pipeline that most tests use."""
    found = entry("flux")
    return found, found.build()


def latents(kind: Entry, pipe: Any, seed: int = 0, **more: Any) -> torch.Tensor:
    """The final latents of a run of the pipeline itself."""
    call = {"num_inference_steps": STEPS, "output_type": "latent", **kind.kwargs(), **more}
    call["generator"] = torch.Generator().manual_seed(seed)
    if isinstance(pipe, ModularPipeline):  # its state has the latents beside the pictures
        return pipe(**{**call, "output_type": "pt", "output": "latents"})
    return pipe(**call)[0]


def opened(kind: Entry, pipe: Any, seed: int = 0, **more: Any) -> PipelineModel:
    """The same run, held open at its loop."""
    call = {"steps": STEPS, **kind.kwargs(), **more}
    return PipelineModel(pipe, generator=torch.Generator().manual_seed(seed), **call)


def follow(model: PipelineModel, policy: Policy) -> torch.Tensor:
    """Equation 2 through the seam: a policy's plan, rolled out on an open run."""
    sigmas = None if policy.sigmas is None else torch.tensor(policy.sigmas)
    guided = model.conditional is not None
    plan = Plan.of(policy, model.sigmas if sigmas is None else sigmas, model.begin, guided=guided)
    return rollout(model, model.noise, plan, model.solver(sigmas))


def rolled(kind: Entry, pipe: Any, policy: Policy, seed: int = 0, **more: Any) -> torch.Tensor:
    """The same on a run of its own, in the layout that the pipeline returns."""
    with opened(kind, pipe, seed, reuse=policy.reuse, **more) as model:
        return model.finish(follow(model, policy))[0]


def interrupted(
    command: Sequence[Any], ledger: Path, lines: int, how: signal.Signals, **options: Any
) -> tuple[int, str, str]:
    """Start a command and end it from outside once its ledger has so many lines; how it ended and what it said."""
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        while process.poll() is None and (not ledger.exists() or ledger.read_bytes().count(b"\n") <= lines):
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(how)
        output, errors = process.communicate(timeout=120)
        return process.returncode, output, errors
    finally:
        process.kill()


@contextmanager
def told() -> Iterator[list[str]]:
    """What budcache warns of, every time that it does."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said += [str(each.message) for each in caught if issubclass(each.category, BudcacheWarning)]


@contextmanager
def counted(kind: Entry, pipe: Any) -> Iterator[list[str]]:
    """The calls that the denoisers really get, by name."""
    calls: list[str] = []
    hooks = [
        getattr(pipe, name).register_forward_pre_hook(lambda *_, name=name: calls.append(name))
        for name in kind.denoisers
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()
