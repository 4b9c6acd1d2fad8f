"""FLUX as people run it: compiled, offloaded, with LoRAs, its networks shared."""

from __future__ import annotations

import warnings

import pytest
import torch
from helpers import STEPS, counted, flux, latents, rolled
from zoo import entry

import budcache
from budcache import BudcacheWarning, Policy
from budcache.pipeline import describe

REUSES = ("output", "residual")


def policy(reuse: str, **more: object) -> Policy:
    return Policy(mask="110100", reuse=reuse, **more)


def served(reuse: str) -> torch.Tensor:
    kind, pipe = flux()
    with budcache.applied(pipe, policy(reuse)):
        return latents(kind, pipe)


# torch.compile. The "eager" backend traces and guards like any other but leaves the arithmetic alone.


@pytest.mark.parametrize("reuse", REUSES)
def test_regional_compilation_stays_compiled(reuse):
    torch._dynamo.reset()
    kind, pipe = flux()
    pipe.transformer.compile_repeated_blocks(fullgraph=True, backend="eager")
    with budcache.applied(pipe, policy(reuse)) as handle:
        torch.testing.assert_close(latents(kind, pipe), served(reuse))
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        latents(kind, pipe)
        assert graphs > 0 and torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs, "no recompilation"
    assert handle.stats().last_run_calls == 3


def test_regional_compilation_after_applying():
    torch._dynamo.reset()
    kind, pipe = flux()
    with budcache.applied(pipe, policy("residual")):
        pipe.transformer.compile_repeated_blocks(fullgraph=True, backend="eager")
        torch.testing.assert_close(latents(kind, pipe), served("residual"))


@pytest.mark.slow
@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("how", ["wrapped", "in place"])
def test_whole_compilation(reuse, how):
    torch._dynamo.reset()
    kind, pipe = flux()
    if how == "wrapped":
        pipe.transformer = torch.compile(pipe.transformer, backend="eager", fullgraph=reuse == "output")
    else:
        pipe.transformer.compile(backend="eager", fullgraph=reuse == "output")
    bare = latents(kind, pipe)
    with budcache.applied(pipe, policy(reuse)) as handle:
        for _ in range(2):
            torch.testing.assert_close(latents(kind, pipe), served(reuse))
    assert handle.stats().last_run_calls == 3
    assert torch.equal(latents(kind, pipe), bare)


@pytest.mark.slow
def test_the_inductor_backend_too():
    torch._dynamo.reset()
    kind, pipe = flux()
    pipe.transformer.compile_repeated_blocks(fullgraph=True)
    with budcache.applied(pipe, policy("output")):
        torch.testing.assert_close(latents(kind, pipe), served("output"), rtol=1e-4, atol=1e-4)


# Offloading, with accelerate's own hooks (between a CPU and itself: what moves is the bookkeeping).


def offload(pipe: object) -> None:
    from accelerate import cpu_offload_with_hook

    hooks, previous = [], None
    for name in pipe.model_cpu_offload_seq.split("->"):
        module = getattr(pipe, name)
        if module is None:
            continue
        _, previous = cpu_offload_with_hook(module, torch.device("cpu"), prev_module_hook=previous)
        hooks.append(previous)
    pipe._all_hooks = hooks


@pytest.mark.parametrize("reuse", REUSES)
@pytest.mark.parametrize("order", ["offload first", "apply first"])
def test_model_offload_in_both_orders(reuse, order, monkeypatch):
    kind, pipe = flux()
    # At the end of a run diffusers removes its hooks and sets them anew.
    monkeypatch.setattr(
        type(pipe), "enable_model_cpu_offload", lambda self, **_: (self.remove_all_hooks(), offload(self))
    )
    if order == "offload first":
        offload(pipe)
    handle = budcache.apply(pipe, policy(reuse))
    if order == "apply first":
        offload(pipe)
    for _ in range(3):
        assert torch.equal(latents(kind, pipe), served(reuse))
        assert handle.stats().last_run_calls == 3
    assert hasattr(pipe.transformer, "_hf_hook")
    handle.remove()
    bare_kind, bare_pipe = flux()
    assert torch.equal(latents(kind, pipe), latents(bare_kind, bare_pipe))
    assert torch.equal(rolled(kind, pipe, policy(reuse)), served(reuse))
    assert torch.equal(latents(kind, pipe), latents(bare_kind, bare_pipe))


# LoRA


@pytest.fixture
def lora(tmp_path):
    from diffusers import FluxPipeline
    from peft import LoraConfig, get_peft_model_state_dict

    _, pipe = flux()
    pipe.transformer.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_k"], init_lora_weights=False))
    FluxPipeline.save_lora_weights(tmp_path, transformer_lora_layers=get_peft_model_state_dict(pipe.transformer))
    return tmp_path


@pytest.mark.parametrize("reuse", REUSES)
def test_a_lora_may_come_and_go(lora, reuse):
    kind, pipe = flux()
    plain = served(reuse)
    with budcache.applied(pipe, policy(reuse)) as handle:
        assert torch.equal(latents(kind, pipe), plain)
        pipe.load_lora_weights(lora)
        styled = latents(kind, pipe)
        assert handle.stats().last_run_calls == 3
        pipe.unload_lora_weights()
        assert torch.equal(latents(kind, pipe), plain)
    assert not torch.equal(styled, plain)
    pipe.load_lora_weights(lora)
    with budcache.applied(pipe, policy(reuse)):
        assert torch.equal(latents(kind, pipe), styled)


def test_a_lora_that_the_policy_was_not_made_with_is_warned_about_once(lora):
    kind, pipe = flux()
    made_here = policy("output", origin=describe(pipe))
    with budcache.applied(pipe, made_here), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        latents(kind, pipe)
        assert not [w for w in caught if issubclass(w.category, BudcacheWarning)]
        pipe.load_lora_weights(lora)
        for _ in range(3):
            latents(kind, pipe)
    ours = [str(w.message) for w in caught if issubclass(w.category, BudcacheWarning)]
    assert len(ours) == 1 and "default_0" in ours[0]
    with pytest.warns(BudcacheWarning, match="adapters"):
        budcache.apply(pipe, made_here).remove()
    made_with = policy("output", origin=describe(pipe))
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudcacheWarning)
        budcache.apply(pipe, made_with).remove()
    pipe.unload_lora_weights()
    with pytest.warns(BudcacheWarning, match="adapters"):
        budcache.apply(pipe, made_with).remove()


# Sharing


@pytest.mark.parametrize("reuse", REUSES)
def test_two_pipelines_share_one_transformer(reuse):
    import diffusers

    kind, pipe = flux()
    other_kind = entry("flux-img2img")
    other = diffusers.FluxImg2ImgPipeline.from_pipe(pipe)
    other.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
    other.set_progress_bar_config(disable=True)
    bare = latents(other_kind, other)
    with budcache.applied(pipe, policy(reuse)):
        assert torch.equal(latents(other_kind, other), bare)
        assert torch.equal(latents(kind, pipe), served(reuse))
        with budcache.applied(other, Policy(mask="101010", reuse=reuse)) as second:
            begun = latents(other_kind, other)
            assert torch.equal(latents(kind, pipe), served(reuse))
            assert torch.equal(latents(other_kind, other), begun)
            assert second.stats().runs == 2
        assert torch.equal(latents(other_kind, other), bare)
        assert torch.equal(latents(kind, pipe), served(reuse))


def test_a_broken_residual_run_does_not_touch_a_pipeline_that_shares_its_transformer():
    import diffusers

    kind, pipe = flux()
    other = diffusers.FluxPipeline(
        **{**pipe.components, "scheduler": type(pipe.scheduler).from_config(pipe.scheduler.config)}
    )
    other.set_progress_bar_config(disable=True)
    bare = latents(kind, other)
    handle = budcache.apply(pipe, policy("residual"))
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        if len(calls) == 3:  # a reused step
            raise MemoryError

    hook = pipe.transformer.proj_out.register_forward_pre_hook(fail)
    try:
        latents(kind, pipe)
    except MemoryError as kept:  # with the traceback, and so the broken run's frames, still alive
        hook.remove()
        assert kept.__traceback__ is not None and torch.equal(latents(kind, other), bare)
    assert torch.equal(latents(kind, other), bare)
    assert torch.equal(latents(kind, pipe), served("residual"))
    handle.remove()


def test_a_controlnet_is_called_as_seldom_as_the_transformer():
    kind = entry("flux-controlnet")
    pipe = kind.build()
    calls = []
    hook = pipe.controlnet.register_forward_pre_hook(lambda *_: calls.append(1))
    with budcache.applied(pipe, policy("output")), counted(kind, pipe) as transformer:
        latents(kind, pipe)
    hook.remove()
    assert len(calls) == len(transformer) == 3 < STEPS
