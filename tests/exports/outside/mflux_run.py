"""An exported class through mflux's own configuration, which loads it by name, with tiny-flux as the model."""

from __future__ import annotations

import json
import sys

import mlx.core as mx
import numpy as np
import torch
from exports.policies import PROMPT, SIZE, STEPS, drawn, policies, stock
from mflux.models.common.config import ModelConfig
from mflux.models.common.config.config import Config

from budcache import PipelineModel

given = json.loads(sys.argv[1])
sys.path.insert(0, given["folder"])
found = {}


def config(kind: str, calls: int) -> Config:
    name = f"policy_{kind}.PolicyScheduler"
    return Config(ModelConfig.dev(), num_inference_steps=calls, height=SIZE, width=SIZE, scheduler=name)


for kind, calls in given["kinds"].items():
    scheduler = config(kind, calls).scheduler
    with PipelineModel(stock(), steps=STEPS, **PROMPT, generator=torch.Generator().manual_seed(0)) as model:
        for _ in range(2):
            x = mx.array(model.noise.numpy())
            for t in range(calls):
                x = scheduler.scale_model_input(x, t)
                sigma = torch.tensor(float(scheduler.sigmas[t]))
                v, _ = model.compute(torch.from_numpy(np.array(x)), sigma)
                x = scheduler.step(noise=mx.array(v.detach().numpy()), timestep=t, latents=x)
    expected = drawn(policies(tuple(given["levels"]))[kind])
    found[kind] = {"difference": (torch.from_numpy(np.array(x)) - expected).abs().max().item(), "calls": calls}
try:
    config(kind, calls + 1).scheduler  # noqa: B018
except ValueError as error:
    found["steps"] = str(error)
print(json.dumps(found))
