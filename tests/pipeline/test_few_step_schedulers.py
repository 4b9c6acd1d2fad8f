"""Schedulers of few-step models: those that can do without fresh noise are served, and the others say why not."""

from __future__ import annotations

import diffusers
import pytest
import torch
from helpers import STEPS, latents, opened, rolled
from zoo import entry

import budcache
from budcache import BudcacheWarning, Mask, PipelineError, Policy

POLICY = Policy(mask="110101")
BLENDED = Policy(mask="110101", weights=((1.0,), (1.3, -0.3), (1.1, 0.1, -0.2), (1.0,)))
SD = entry("sd15-ddim")


@pytest.fixture(scope="module")
def tcd():
    """Stable Diffusion as Hyper-SD and TCD have it; the pipeline passes eta, which is 0 if not told."""
    pipe = SD.build()
    pipe.scheduler = diffusers.TCDScheduler.from_config(pipe.scheduler.config)
    return pipe


@pytest.mark.parametrize("policy", [POLICY, BLENDED], ids=["plain", "blended"])
def test_tcd_without_noise_is_served_as_it_is_searched(tcd, policy):
    with budcache.applied(tcd, policy) as handle:
        served = latents(SD, tcd)
        assert handle.stats().last_run_calls == policy.budget
    assert torch.equal(served, rolled(SD, tcd, policy))
    plain = latents(SD, tcd)
    with budcache.applied(tcd, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(latents(SD, tcd), plain)


def test_tcd_with_noise_is_refused_wherever_it_would_run(tcd):
    with budcache.applied(tcd, POLICY), pytest.raises(PipelineError, match=r"eta=0\.3 adds fresh noise"):
        latents(SD, tcd, eta=0.3)
    with pytest.raises(PipelineError, match=r"eta=0\.3 adds fresh noise.*eta=0\.0"):
        opened(SD, tcd, eta=0.3)
    with pytest.warns(BudcacheWarning, match=r"not recorded: eta=0\.3"), budcache.recording(tcd) as record:
        latents(SD, tcd, eta=0.3)
        latents(SD, tcd)
    assert len(record) == 1


@pytest.mark.parametrize("scheduler", ["FlowMatchLCMScheduler", "LCMScheduler"])
def test_fresh_noise_at_every_step_is_refused_with_the_reason(scheduler):
    pipe = entry("flux" if scheduler.startswith("Flow") else "sd15-ddim").build()
    pipe.scheduler = getattr(diffusers, scheduler)()
    with pytest.raises(PipelineError, match=f"{scheduler} adds fresh noise.*holds the noise of an earlier step.*Set"):
        budcache.apply(pipe, POLICY)
