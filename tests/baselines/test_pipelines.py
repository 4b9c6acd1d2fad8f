"""Every method on real pipelines: exact when it computes everything, gone when it is taken off, counted in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from zoo import Entry, entry

from budcache import Mask, PipelineError, PipelineModel, Policy, SearchError, applied
from budcache.baselines import BASELINES, Baseline, Record, caching, record, tune
from budcache.baselines.dicache import DiCache
from budcache.baselines.ertacache import ERTACache
from budcache.baselines.lemica import LeMiCa
from budcache.baselines.magcache import MagCache
from budcache.baselines.record import fresh
from budcache.baselines.taylorseer import TaylorSeer
from budcache.baselines.teacache import TeaCache
from budcache.models import load, prompts
from budcache.numerics.rollout import rollout

STEPS = 8
NATIVE = ("teacache", "magcache", "lemica", "dicache", "ertacache", "taylorseer")
HERE = [name for name, method in BASELINES.items() if method.available()]
# With and without a second guidance branch, a multistep solver, two experts, and every other known trunk.
KINDS = ("flux", "flux-true-cfg", "wan-t2v-euler", "wan-t2v", "wan22", "qwen-image", "sd3", "z-image-cfg")


@cache
def known(name: str) -> tuple[Entry, Any, Record]:
    kind = entry(name)
    pipe = kind.build()
    return kind, pipe, record(pipe, STEPS, [sample(kind, seed) for seed in (0, 1)])


@cache
def plain(name: str) -> torch.Tensor:
    kind, pipe, _ = known(name)
    return run(kind, pipe)


@cache
def calibrated(kind: str, method: str) -> Baseline:
    return BASELINES[method].calibrated(known(kind)[2])


def sample(kind: Entry, seed: int = 0, **more: Any) -> dict[str, Any]:
    return {**kind.kwargs(), "generator": torch.Generator().manual_seed(seed), **more}


def run(kind: Entry, pipe: Any, seed: int = 0, **more: Any) -> torch.Tensor:
    return pipe(**{"num_inference_steps": STEPS, **sample(kind, seed, **more)}, output_type="latent")[0]


def halved(method: Baseline) -> Baseline:
    """The method at a knob where it skips about half of the steps; the same number for every kind of pipeline."""
    if method.static:
        return tune(None, method, STEPS // 2, [])
    return method.tuned({"diffusers-firstblock": 0.5}.get(method.name, 0.3))


@contextmanager
def counting(pipe: Any, block: int = -1) -> Iterator[list[int]]:
    """How often a block of the trunk, counted from the end, makes queries."""
    seen: list[int] = []
    hooks = []
    for name in ("transformer", "transformer_2"):
        if (transformer := getattr(pipe, name, None)) is not None:
            lists = ("transformer_blocks", "single_transformer_blocks", "blocks", "layers")
            blocks = [each for found in lists for each in getattr(transformer, found, ())]
            queries = next(module for path, module in blocks[block].named_modules() if path.endswith("to_q"))
            hooks.append(queries.register_forward_pre_hook(lambda *_: seen.append(1)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def fits(method: str, kind: str) -> bool:
    return method in NATIVE or kind in ("flux", "flux-true-cfg", "wan-t2v-euler", "wan-t2v", "wan22", "qwen-image")


CASES = [(method, kind) for kind in KINDS for method in HERE if fits(method, kind)]


@pytest.mark.parametrize(("method", "name"), CASES)
def test_a_method_that_computes_everything_changes_nothing(method, name):
    kind, pipe, _ = known(name)
    before, chosen = plain(name), calibrated(name, method)
    with caching(pipe, chosen.tuned(chosen.knob.most), STEPS) as runs:
        assert torch.equal(run(kind, pipe), before)
    assert runs.masks == [Mask.full(STEPS)]


@pytest.mark.parametrize(("method", "name"), CASES)
def test_calls_are_as_counted_and_the_pipeline_is_left_as_it_was(method, name):
    kind, pipe, _ = known(name)
    before, scheduler = plain(name), pipe.scheduler
    modules = [str(type(module)) for module in pipe.transformer.modules()]
    chosen = halved(calibrated(name, method))
    with counting(pipe) as seen, caching(pipe, chosen, STEPS) as runs:
        first = run(kind, pipe)
        again = run(kind, pipe)
    assert torch.equal(first, again), "a run must not depend on the one before"
    mask, second = runs.masks
    assert mask == second
    if chosen.static or method in NATIVE:
        assert len(seen) == 2 * mask.budget * kind.branches
    else:  # the others decide for each branch, and a step counts if any of them computes
        assert 2 * mask.budget <= len(seen) <= 2 * mask.budget * kind.branches
    if chosen.static and name != "wan22":  # the second expert's first step is computed in any case
        assert mask == chosen.mask(STEPS)
        assert mask.budget < STEPS
    if mask.budget < STEPS:
        assert not torch.equal(first, before)
    assert torch.isfinite(first).all()
    assert pipe.scheduler is scheduler
    assert [str(type(module)) for module in pipe.transformer.modules()] == modules
    assert torch.equal(run(kind, pipe), before)


@pytest.mark.parametrize("method", HERE)
@pytest.mark.parametrize("name", ["flux", "wan-t2v-euler"])
def test_an_exception_leaves_a_clean_pipeline_and_clean_state(method, name):
    kind, pipe, _ = known(name)
    before, chosen = plain(name), halved(calibrated(name, method))
    with caching(pipe, chosen, STEPS) as runs:
        wanted = run(kind, pipe)

    class Stop(Exception):
        pass

    def stop(pipe: Any, step: int, time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 3:
            raise Stop
        return {}

    with caching(pipe, chosen, STEPS) as runs:
        with pytest.raises(Stop):
            run(kind, pipe, seed=1, callback_on_step_end=stop)
        assert runs.masks == []
        assert torch.equal(run(kind, pipe), wanted)
        assert len(runs.masks) == 1
    with pytest.raises(Stop), caching(pipe, chosen, STEPS):
        run(kind, pipe, callback_on_step_end=stop)
    assert torch.equal(run(kind, pipe), before)


@pytest.mark.parametrize("method", HERE)
@pytest.mark.parametrize(("name", "sizes"), [("flux", (32, 64)), ("wan-t2v-euler", (64, 32))])
def test_runs_of_two_sizes_follow_each_other(method, name, sizes):
    kind, pipe, _ = known(name)
    chosen = halved(calibrated(name, method))
    alone = []
    for size in sizes:
        with caching(pipe, chosen, STEPS):
            alone.append(run(kind, pipe, height=size, width=size))
    with caching(pipe, chosen, STEPS) as runs:
        together = [run(kind, pipe, height=size, width=size) for size in (*sizes, sizes[0])]
    assert [torch.equal(a, b) for a, b in zip(together, (*alone, alone[0]), strict=True)] == [True] * 3
    assert len(runs.masks) == 3


@pytest.mark.parametrize("name", ["flux", "flux-true-cfg", "wan-t2v"])
@pytest.mark.parametrize("method", ["magcache", "lemica"])
def test_plain_residual_reuse_is_that_of_a_policy(method, name):
    kind, pipe, _ = known(name)
    chosen = halved(calibrated(name, method))
    with applied(pipe, Policy(mask=chosen.mask(), reuse="residual")):
        wanted = run(kind, pipe)
    with caching(pipe, chosen, STEPS):
        assert torch.equal(run(kind, pipe), wanted)


@pytest.mark.parametrize("name", ["flux", "wan-t2v-euler"])
def test_a_record_holds_what_the_trunks_did(name):
    kind, pipe, seen = known(name)
    with PipelineModel(pipe, steps=STEPS, reuse="residual", **sample(kind)) as model:
        memos = []

        class Keeping:
            reuse = model.reuse

            def compute(self, x: torch.Tensor, sigma: torch.Tensor) -> Any:
                v, memo = model.compute(x, sigma)
                memos.append(memo)
                return v, memo

        rollout(Keeping(), model.noise, model.sigmas, Mask.full(STEPS), model.solver())
    for number, key in enumerate(memos[0]):
        residuals = [memo[key] for memo in memos]
        trace = next(trace for trace in seen.traces if trace.branch == number)
        norms = [residual.norm(dim=-1) for residual in residuals]
        ratios = [1.0, *((norms[k] / norms[k - 1]).mean().item() for k in range(1, STEPS))]
        np.testing.assert_allclose(trace.ratio, ratios, rtol=1e-5)
        assert trace.distance[1, 5] == pytest.approx((residuals[1] - residuals[5]).abs().mean().item(), rel=1e-4)
        assert trace.gram[2, 6] == pytest.approx((residuals[2] * residuals[6]).mean().item(), rel=1e-3, abs=1e-6)
        assert trace.size[3] == pytest.approx(residuals[3].abs().mean().item(), rel=1e-5)
        assert np.isnan(trace.signal[0]) and (trace.signal[1:] > 0).all() and (trace.output[1:] > 0).all()
    assert seen.branches == kind.branches


def test_a_record_does_not_use_up_generators():
    kind, pipe, _ = known("flux")
    given = [sample(kind, 7)]
    before = given[0]["generator"].get_state()
    first, second = record(pipe, STEPS, given), record(pipe, STEPS, given)
    assert torch.equal(given[0]["generator"].get_state(), before)
    np.testing.assert_array_equal(first.traces[0].distance, second.traces[0].distance)


def test_a_batch_is_recorded_as_one():
    kind, pipe, _ = known("flux")
    assert len(record(pipe, STEPS, [sample(kind, seed) for seed in range(3)], batch=2).traces) == 2


def test_lemicas_segments_are_the_harm_of_serving_them():
    kind, pipe, seen = known("flux")
    method = LeMiCa.calibrated(seen)
    before = plain("flux")
    for i, j in ((0, 2), (1, 4), (2, 7)):
        with applied(pipe, Policy(mask=Mask.of(STEPS, {*range(i + 1), *range(j, STEPS)}), reuse="residual")):
            harm = (run(kind, pipe) - before).abs().mean().item()
        assert method.errors[i][j] == pytest.approx(harm, rel=1e-4)


def test_wans_time_signal_gives_one_mask_for_every_prompt():
    kind, pipe, _ = known("wan-t2v-euler")
    with caching(pipe, calibrated("wan-t2v-euler", "teacache").tuned(0.3), STEPS) as runs:
        run(kind, pipe, seed=0, prompt="a dog")
        run(kind, pipe, seed=5, prompt="two ships")
    assert runs.masks[0] == runs.masks[1]


def test_teacache_computes_its_first_and_last_steps():
    kind, pipe, _ = known("flux")
    method = calibrated("flux", "teacache")
    assert isinstance(method, TeaCache)
    for first, last, wanted in ((1, True, "10000001"), (3, False, "11100000")):
        with caching(pipe, replace(method, first=first, last=last, threshold=1e4), STEPS) as runs:
            run(kind, pipe)
        assert str(runs.masks[0]) == wanted


def test_dicache_probes_every_step_and_computes_its_warm_up_and_last():
    kind, pipe, _ = known("flux")
    method = DiCache(steps=STEPS, warmup=0.25, threshold=1e4)
    with counting(pipe, block=0) as probed, counting(pipe) as computed, caching(pipe, method, STEPS) as runs:
        run(kind, pipe)
    assert str(runs.masks[0]) == "11100001"
    assert (len(probed), len(computed)) == (STEPS, 4)


def test_dicache_goes_on_from_two_residuals():
    """With no gain allowed it repeats the newest; with some, it goes further."""
    kind, pipe, _ = known("flux")
    method = DiCache(steps=STEPS, warmup=0.25, threshold=1e4)
    with applied(pipe, Policy(mask="11100001", reuse="residual")):
        repeated = run(kind, pipe)
    outs = []
    for gain in (1.0, 1.5):
        with caching(pipe, replace(method, gain=gain), STEPS):
            outs.append(run(kind, pipe))
    torch.testing.assert_close(outs[0], repeated)
    assert (outs[1] - repeated).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["flux", "wan-t2v-euler", "qwen-image"])
def test_taylorseer_forecasts_every_module_of_a_skipped_step(name):
    kind, pipe, _ = known(name)
    method = TaylorSeer(steps=STEPS, interval=4, first=2)
    with counting(pipe, block=0) as first, counting(pipe) as last, caching(pipe, method, STEPS):
        run(kind, pipe)
    assert len(first) == len(last) == 3 * kind.branches  # steps 0, 1 and 5


def test_ertacache_runs_on_the_levels_that_it_announces():
    kind, pipe, _ = known("flux")
    method = halved(calibrated("flux", "ertacache"))
    assert isinstance(method, ERTACache)
    levels: list[float] = []

    def keep(pipe: Any, step: int, time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        levels[:] = pipe.scheduler.sigmas.tolist()
        return {}

    plain = replace(method, adjust=False)
    with caching(pipe, plain, STEPS):
        run(kind, pipe, callback_on_step_end=keep)
    own = list(levels)
    with caching(pipe, replace(method, adjust=True), STEPS):
        run(kind, pipe, callback_on_step_end=keep)
    assert levels == pytest.approx(method.sigmas(torch.tensor(own), STEPS).tolist())
    assert levels != own


def test_tuning_reaches_the_budget_on_a_real_model():
    pipe = load("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    samples = [{"prompt": prompts("tiny-flux", "calibration")[0], "generator": torch.Generator().manual_seed(0)}]
    seen = record(pipe, 28, samples)
    for name in ("teacache", "magcache", "ertacache", "dicache", "taylorseer"):
        method = BASELINES[name].calibrated(seen)
        if isinstance(method, ERTACache):
            method = replace(method, adjust=False, rectify=False)
        if isinstance(method, DiCache):
            method = replace(method, difference=False)
        for budget in (6, 8) if method.static else (8,):
            tuned = tune(pipe, method, budget, samples)
            with caching(pipe, tuned, 28) as runs:
                pipe(**fresh(samples[0]), output_type="latent")
            # What decides while it runs may jump over a number; what does not, may not.
            assert abs(runs.calls[0] - budget) <= (0 if tuned.static else 1), name


def test_forced_steps_give_way_to_a_small_budget():
    method = MagCache.published("FLUX.1-dev")
    tuned = tune(None, method, 5, [])
    assert tuned.mask().budget == 5
    assert tuned.longest > method.longest
    with pytest.raises(SearchError, match="budget of 29 does not fit 28"):
        tune(None, method, 29, [])


def test_a_choice_left_open_is_made_on_the_samples():
    kind, pipe, seen = known("flux")
    samples = [sample(kind, seed) for seed in (0, 1)]
    tuned = tune(pipe, ERTACache.calibrated(seen), 4, samples)
    assert tuned.adjust is not None and tuned.rectify is not None

    def error(method: ERTACache) -> float:
        total = 0.0
        for seed in (0, 1):
            with caching(pipe, method, STEPS):
                total += (run(kind, pipe, seed) - full[seed]).square().mean().item()
        return total

    full = [run(kind, pipe, seed) for seed in (0, 1)]
    others = [replace(tuned, adjust=a, rectify=r) for a in (True, False) for r in (True, False)]
    assert error(tuned) == min(error(other) for other in others)


def test_unknown_trunks_and_doubled_methods_are_refused():
    _, pipe, _ = known("flux")
    method = calibrated("flux", "magcache")
    other = entry("sana").build()
    with (
        pytest.raises(PipelineError, match=r"FluxTransformer2DModel.*not of SanaTransformer2DModel"),
        caching(other, method),
    ):
        pass
    with caching(pipe, method), pytest.raises(PipelineError, match="already"), caching(pipe, method):
        pass
    with pytest.raises(PipelineError, match="ControlNet"), caching(entry("flux-controlnet").build(), method):
        pass
    with pytest.raises(SearchError, match="no samples"):
        record(pipe, STEPS, [])


def test_diffusers_caches_need_a_pipeline_that_names_its_branches():
    kind = entry("flux-img2img")
    pipe = kind.build()
    method = calibrated("flux", "diffusers-firstblock")
    with pytest.raises(PipelineError, match="cache_context"), caching(pipe, method, STEPS):
        pass
    with caching(pipe, MagCache(steps=STEPS, ratios=(1.0,) * STEPS, retention=0.5), STEPS) as runs:
        run(kind, pipe)
    assert len(runs.masks[0]) < STEPS  # strength 0.6 runs the last steps only, and the first of them is computed
    assert runs.masks[0].budget < len(runs.masks[0])


@pytest.mark.skipif(BASELINES["cache-dit"].available(), reason="cache-dit is installed")
def test_a_missing_cache_dit_is_named_with_its_extra():
    _, pipe, seen = known("flux")
    method = BASELINES["cache-dit"].calibrated(seen)
    with pytest.raises(PipelineError, match=r"budcache\[cache-dit\]"), caching(pipe, method, STEPS):
        pass
