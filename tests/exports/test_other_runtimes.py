"""Exports run by the libraries that they are for. `environments.py` says where these come from."""

from __future__ import annotations

import random

import pytest

import budcache
from budcache import Mask, Policy
from exports.environments import CACHE_DIT, DIFFSYNTH, MFLUX, SGLANG, VLLM_OMNI, libraries, outside, unpacked
from exports.policies import CALLS, MASK, levels, policies

pytestmark = pytest.mark.slow

KINDS = ("plain", "levels", "weights", "rows", "features")


def classes(target, folder):
    for kind in KINDS:
        budcache.export(policies(levels())[kind], target, folder / f"policy_{kind}.py")
    return {"folder": folder, "kinds": dict.fromkeys(KINDS, CALLS), "levels": levels()}


def test_diffsynth_draws_what_budcache_draws(tmp_path):
    """Its wheel and three small packages beside this environment; what it imports in vain is `placeholders.py`."""
    found = outside("diffsynth_run", libraries(*DIFFSYNTH), **classes("diffsynth", tmp_path))
    assert {kind: found[kind]["calls"] for kind in KINDS} == dict.fromkeys(KINDS, CALLS)
    assert max(found[kind]["difference"] for kind in KINDS) <= 1e-5, found
    assert "denoising_strength" in found["midway"]


def test_mflux_draws_what_budcache_draws(tmp_path):
    """Its wheel beside this environment, with mlx for CPUs; its own configuration loads the exported class."""
    found = outside("mflux_run", libraries(*MFLUX), **classes("mflux", tmp_path))
    assert max(found[kind]["difference"] for kind in KINDS) <= 1e-5, found
    assert f"--steps {CALLS}" in found["steps"]


def test_cache_dit_computes_at_the_policy_s_steps(tmp_path):
    """Its wheel alone, beside this environment."""
    policy, file = policies(levels())["residual"], tmp_path / "mask.yaml"
    budcache.export(policy, "cache-dit", file, approximate=True)
    found = outside("cachedit_run", libraries(*CACHE_DIT), file=file, levels=levels())
    assert found["computed"] == [k for k, bit in enumerate(MASK) if bit == "1"]
    assert found["error"] < found["full"] / 4  # near to our residual reuse, where the full run is far from it


def test_sglang_reads_the_masks_that_were_meant(tmp_path):
    """Its wheel is unpacked, not installed: its functions that read settings are taken out, with real cache-dit."""
    dice, folders, masks = random.Random(0), [], []
    for number in range(40):
        bits = "1" + "".join(dice.choice("01") for _ in range(27))
        if "0" not in bits:
            continue
        masks.append([int(bit) for bit in bits])
        policy = Policy(mask=Mask.parse(bits), reuse="residual")
        options = {"runtime": "sglang", "approximate": True}
        folders.append(str(budcache.export(policy, "cache-dit", tmp_path / str(number), **options).path))
    there = unpacked(SGLANG, "sglang/multimodal_gen/runtime/")
    found = outside("sglang_run", libraries(*CACHE_DIT), sglang=there, folders=folders, steps=28)
    assert found == [[mask, mask] for mask in masks]


def test_vllm_omni_reuses_residuals_to_the_last_bit(tmp_path):
    """Its wheel is unpacked, not installed: configuration and hook are imported, with a logger for vLLM's."""
    file, there = tmp_path / "flags.txt", unpacked(VLLM_OMNI, "vllm_omni/diffusion/")
    budcache.export(policies(levels())["residual"], "magcache", file, runtime="vllm-omni")
    found = outside("vllm_omni_run", file=file, vllm_omni=there, levels=levels())
    assert found["equal"] == [True, True]
