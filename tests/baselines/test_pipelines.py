"""What single methods do on real pipelines; what all of them promise is in test_contract.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from kinds import STEPS, calibrated, known, run, sample
from zoo import entry

from budcache import Mask, PipelineError, PipelineModel, Policy, SearchError, applied
from budcache.baselines import BASELINES, Baseline, Branch, Knob, Native, Record, StaticBranch, caching, record, tune
from budcache.baselines.dicache import DiCache
from budcache.baselines.ertacache import ERTACache
from budcache.baselines.lemica import LeMiCa
from budcache.baselines.magcache import MagCache
from budcache.baselines.pictures import fresh
from budcache.baselines.taylorseer import TaylorSeer
from budcache.baselines.teacache import TeaCache
from budcache.models import load, prompts
from budcache.numerics.rollout import rollout
from budcache.plan import Plan


def halved(method: Baseline) -> Baseline:
    """A static method at half of the steps."""
    assert method.static
    return tune(None, method, STEPS // 2, [])


def together(method: Baseline) -> Baseline:
    """A method whose first guidance branch decides for all."""
    return replace(method, apart=False) if isinstance(method, MagCache | DiCache) else method


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


@pytest.mark.parametrize("name", ["flux", "flux-true-cfg", "wan-t2v"])
@pytest.mark.parametrize("method", ["magcache", "lemica"])
def test_plain_residual_reuse_is_that_of_a_policy(method, name):
    kind, pipe, _ = known(name)
    chosen = halved(together(calibrated(name, method)))
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

        plan = Plan.of(Policy(mask=Mask.full(STEPS), reuse="residual"), model.sigmas)
        rollout(Keeping(), model.noise, plan, model.solver())
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
    """On average over the samples; and what measuring them costs is known beforehand."""
    kind, pipe, seen = known("flux")
    with counting(pipe) as made:
        method = LeMiCa.calibrated(seen)
    assert len(made) == LeMiCa.calibration_calls(STEPS, len(seen.samples))
    before = [run(kind, pipe, seed) for seed in (0, 1)]
    for i, j in ((0, 2), (1, 4), (2, 7)):
        with applied(pipe, Policy(mask=Mask.of(STEPS, {*range(i + 1), *range(j, STEPS)}), reuse="residual")):
            harms = [(run(kind, pipe, seed) - before[seed]).abs().mean().item() for seed in (0, 1)]
        assert method.errors[i][j] == pytest.approx(sum(harms) / 2, rel=1e-4)
        assert harms[0] != pytest.approx(harms[1], rel=1e-3), "or one sample would do"
    assert LeMiCa.calibration_calls(28, 1) == 2335
    assert LeMiCa.calibration_calls(28, 32) == 4 * 2335


def test_wans_time_signal_gives_one_mask_for_every_prompt():
    kind, pipe, _ = known("wan-t2v-euler")
    with caching(pipe, calibrated("wan-t2v-euler", "teacache").tuned(0.3), STEPS) as runs:
        run(kind, pipe, seed=0, prompt="a dog")
        run(kind, pipe, seed=5, prompt="two ships")
    assert runs.masks[0] == runs.masks[1]
    assert 2 < runs.calls[0] < STEPS  # neither all steps nor just those that are always computed


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


@pytest.mark.slow
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
        for budget in (6, 8) if name == "magcache" else (8,):
            tuned = tune(pipe, method, budget, samples)
            with caching(pipe, tuned, 28) as runs:
                pipe(**fresh(samples[0]), output_type="latent")
            # What decides while it runs may jump over a number; what does not, may not.
            assert abs(runs.calls[0] - budget) <= (0 if tuned.static else 1), name


def test_a_knob_of_whole_numbers_is_tuned_by_running_too():
    kind, pipe, _ = known("flux")

    @dataclass(frozen=True, kw_only=True)
    class Every(Native):
        """Decides while it runs, and its knob counts steps."""

        name = "every"
        knob = Knob("interval", most=1, fewest=100, whole=True)
        interval: int = 1

        @classmethod
        def calibrated(cls, record: Record) -> Every:
            return cls(steps=record.steps)

        def branch(self, steps: int, number: int) -> Branch:
            return StaticBranch(Mask.of(steps, range(0, steps, self.interval)))

    for budget in (8, 4, 3, 2):
        tuned = tune(pipe, Every(steps=STEPS), budget, [sample(kind), sample(kind, 1)])
        with caching(pipe, tuned) as runs:
            run(kind, pipe)
        assert runs.calls == [budget]


def test_forced_steps_give_way_to_a_small_budget():
    method = MagCache.published("FLUX.1-dev")
    tuned = tune(None, method, 5, [])
    assert tuned.mask().budget == 5
    assert tuned.retention < method.retention
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
    errors = [error(other) for other in others]
    assert error(tuned) == min(errors)
    assert len(set(errors)) == 4  # there was something to choose


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
