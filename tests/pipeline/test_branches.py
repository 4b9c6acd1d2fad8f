"""Guidance apart (F12): what the conditional branch gives is heard where the network is, and nothing else changes."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
from helpers import latents, opened, rolled
from zoo import ENTRIES, entry

import budcache
from budcache import Policy

TWO_BRANCHES = [
    *("wan-t2v", "wan22-t2v", "wan-i2v", "sd3", "sdxl", "flux-true-cfg", "z-image-cfg", "qwen-image"),
    *("modular-wan", "modular-qwen-image", "modular-sdxl", "ltx"),
]
KINDS = [kind for kind in ENTRIES if kind.name in TWO_BRANCHES]
ROWS = [{"outputs": [1.0]}, {"outputs": [1.4, -0.4]}, {"outputs": [1.3, -0.2, -0.1]}]
GUIDED = Policy(
    mask="110100",
    rows=ROWS,
    guided=[
        {"outputs": [0.9], "branch": [0.1], "noise": 0.01},
        {"outputs": [1.2, -0.3], "branch": [0.2, -0.1], "noise": -0.02},
        {"outputs": [1.1, -0.2, 0.1], "branch": [0.3, -0.2, -0.1]},
    ],
)


def hooks(pipe):
    return [len(part._forward_hooks) for part in pipe.components.values() if isinstance(part, torch.nn.Module)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_searched_is_what_is_served(kind):
    pipe = kind.build()
    before, full = hooks(pipe), latents(kind, pipe)
    by_search = rolled(kind, pipe, GUIDED)
    assert not torch.equal(by_search, rolled(kind, pipe, GUIDED.model_copy(update={"guided": None})))
    with budcache.applied(pipe, GUIDED) as handle:
        served = latents(kind, pipe)
        assert handle.stats().last_run_calls == 3
        assert hooks(pipe) != before
    assert torch.equal(served, by_search)
    assert hooks(pipe) == before
    assert torch.equal(latents(kind, pipe), full)


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("wan-t2v", {"guidance_scale": 1.0}),
        ("flux-true-cfg", {"true_cfg_scale": 1.0}),
        ("qwen-image", {"true_cfg_scale": 1.0}),
        ("sdxl", {"guidance_scale": 1.0}),
        ("sd3", {"guidance_scale": 1.0}),
        ("z-image-cfg", {"guidance_scale": 0.0}),
    ],
)
def test_it_is_what_the_pipeline_gives_without_guidance(name, alone):
    kind = entry(name)
    pipe = kind.build()
    with opened(kind, pipe) as guided, opened(kind, pipe, **alone) as single:
        assert single.conditional is None
        x, sigma = guided.noise, guided.sigmas[0]
        (v, _), (c, _) = guided.compute(x, sigma), single.compute(x, sigma)
        assert torch.allclose(guided.conditional, c, atol=1e-5)
        assert not torch.allclose(v, c, atol=1e-3)


def test_without_guidance_a_policy_goes_by_its_rows():
    kind = entry("wan-t2v")
    pipe, alone = kind.build(), {"guidance_scale": 1.0}
    with budcache.applied(pipe, GUIDED.model_copy(update={"guided": None})):
        combined = latents(kind, pipe, **alone)
    with budcache.applied(pipe, GUIDED):
        with pytest.warns(budcache.BudcacheWarning, match=r"two branches of guidance.*combined output"):
            assert torch.equal(latents(kind, pipe, **alone), combined)
        assert not torch.equal(latents(kind, pipe), combined)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(latents(kind, pipe, **alone), combined)  # said once


def test_weights_by_the_solver_may_be_what_to_fall_back_on():
    kind = entry("wan-t2v")
    pipe = kind.build()
    by_solver = GUIDED.model_copy(update={"rows": None, "weights": [row["outputs"] for row in ROWS]})
    guided = rolled(kind, pipe, GUIDED)
    with budcache.applied(pipe, by_solver):
        assert torch.equal(latents(kind, pipe), guided)
        with pytest.warns(budcache.BudcacheWarning, match="combined output"):
            combined = latents(kind, pipe, guidance_scale=1.0)
    with budcache.applied(pipe, by_solver.model_copy(update={"guided": None})):
        assert torch.equal(latents(kind, pipe, guidance_scale=1.0), combined)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["around", "in place"])
def test_compiled_networks_are_heard(how):
    kind = entry("wan-t2v")
    pipe, plain = kind.build(), rolled(kind, kind.build(), GUIDED)
    transformer = pipe.transformer
    if how == "around":
        pipe.transformer = torch.compile(transformer, backend="eager")
    else:
        transformer.compile(backend="eager", fullgraph=True)
    compiled = transformer._compiled_call_impl
    with budcache.applied(pipe, GUIDED):
        assert torch.allclose(latents(kind, pipe), plain, atol=1e-5)
    assert transformer._compiled_call_impl is compiled
    assert torch.allclose(rolled(kind, pipe, GUIDED), plain, atol=1e-5)
    assert transformer._compiled_call_impl is compiled


def test_adapters_and_offloading_are_heard():
    from accelerate import cpu_offload
    from peft import LoraConfig

    kind = entry("wan-t2v")
    pipe = kind.build()
    pipe.transformer.add_adapter(LoraConfig(r=2, target_modules=["to_q", "to_k"], init_lora_weights=False))
    plain = rolled(kind, pipe, GUIDED)
    cpu_offload(pipe.transformer)
    with budcache.applied(pipe, GUIDED):
        assert torch.allclose(latents(kind, pipe), plain, atol=1e-5)


def test_copies_and_pickles_listen_to_their_own_networks():
    kind = entry("wan-t2v")
    pipe = kind.build()
    with budcache.applied(pipe, GUIDED):
        served = latents(kind, pipe)
        for twin in (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))):
            assert twin.scheduler.branches is not pipe.scheduler.branches
            assert torch.allclose(latents(kind, twin), served, atol=1e-5)
        assert torch.equal(latents(kind, pipe), served)


def test_nothing_is_kept_after_a_run_or_a_failure():
    kind = entry("wan-t2v")
    pipe = kind.build()

    def fail(*_):
        raise ValueError("in the middle")

    with budcache.applied(pipe, GUIDED):
        latents(kind, pipe)
        assert pipe.scheduler.branches._heard == [] and pipe.scheduler._branch == ()
        with pytest.raises(ValueError, match="in the middle"):
            latents(kind, pipe, callback_on_step_end=fail)
        assert pipe.scheduler.branches._heard == [] and pipe.scheduler._branch == ()
        assert torch.equal(latents(kind, pipe), rolled(kind, pipe_of(kind), GUIDED))


def pipe_of(kind):
    return kind.build()


def test_a_search_takes_guidance_apart_where_that_is_better():
    """On all samples, for there are few: of two forms the better one, and more weights are never worse there."""
    kind = entry("wan-t2v")
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    ladder = budcache.search(kind.build(), steps=6, budgets=3, prompts=["a", "b", "c"], call=call)
    (rung,) = ladder
    assert rung.guided is not None and len(rung.guided[-1].branch) == 3
    assert rung.rows is not None and not any(row.branch for row in rung.rows)
    assert "blend 3+ g" in str(rung)
