"""An exported class under DiffSynth's own base class and step, with tiny-flux as the model."""

from __future__ import annotations

import importlib
import json
import sys

import torch
from exports.policies import PROMPT, STEPS, drawn, policies, stock

from budcache import PipelineModel

given = json.loads(sys.argv[1])
sys.path.insert(0, given["folder"])
stock()  # before the placeholders, which transformers would take for the real thing
importlib.import_module("placeholders")
base = importlib.import_module("diffsynth.diffusion.base_pipeline").BasePipeline
found = {}
for kind, calls in given["kinds"].items():
    scheduler = importlib.import_module(f"policy_{kind}").PolicyScheduler()
    with PipelineModel(stock(), steps=STEPS, **PROMPT, generator=torch.Generator().manual_seed(0)) as model:
        for _ in range(2):  # a scheduler can be used again
            scheduler.set_timesteps(calls, denoising_strength=1.0, shift=None)
            x = model.noise
            for number, timestep in enumerate(scheduler.timesteps):
                v, _ = model.compute(x, timestep / 1000)
                x = base.step(None, scheduler, latents=x, progress_id=number, noise_pred=v)
    expected = drawn(policies(tuple(given["levels"]))[kind])
    found[kind] = {"difference": (x - expected).abs().max().item(), "calls": len(scheduler.timesteps)}
try:
    scheduler.set_timesteps(calls, denoising_strength=0.5)
except ValueError as error:
    found["midway"] = str(error)
print(json.dumps(found))
