"""Pipelines with two experts: nothing is reused across the switch, unless it was fitted so."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from zoo import entry

import budcache
from budcache import BudcacheWarning, Ladder, SearchError
from budcache.pipeline.experts import switch_of
from budcache.records.gram import Grams
from budcache.records.paths import ShortestPaths
from budcache.report.text import describe

STEPS, BUDGET = 6, 4
KIND = entry("wan22")
CALL = {name: value for name, value in KIND.kwargs().items() if name not in ("prompt", "generator")}


@pytest.fixture(scope="module")
def pipe():
    return KIND.build()


def searched(pipe, **more):
    work = {"steps": STEPS, "budgets": [BUDGET], "prompts": ["a cat", "the sea"], "call": CALL}
    return budcache.search(pipe, **work, **more)


@pytest.fixture(scope="module")
def ladder(pipe):
    return searched(pipe)


def drawn(pipe, steps=STEPS):
    call = {**CALL, "prompt": "a cat", "generator": torch.Generator().manual_seed(3)}
    return pipe(**call, num_inference_steps=steps, output_type="latent").frames


@pytest.mark.parametrize("steps", [4, 8, 11])
def test_the_switch_is_where_the_second_expert_is_first_called(pipe, steps):
    called = []
    hooks = [
        getattr(pipe, name).register_forward_hook(lambda *_, name=name: called.append(name)) for name in KIND.denoisers
    ]
    drawn(pipe, steps)
    for hook in hooks:
        hook.remove()
    by_step = called[::2]  # two branches of guidance
    assert len(by_step) == steps
    assert switch_of(pipe, steps) == by_step.index("transformer_2")
    assert switch_of(entry("wan-t2v").build(), steps) is None


def test_each_expert_computes_its_first_step_and_looks_back_on_itself_alone(pipe, ladder):
    switch = switch_of(pipe, STEPS)
    for rung in ladder:
        assert rung.origin.switch == switch
        assert rung.mask[switch]
        assert rung.is_blended
        for form in filter(None, (rung.rows, rung.guided)):
            for place, (step, row) in enumerate(zip(rung.mask.computed, form, strict=True)):
                own = [each for each in rung.mask.computed[: place + 1] if (each < switch) == (step < switch)]
                assert 1 <= len(row.outputs) <= len(own)
                assert len(row.branch) <= len(own)
    assert any(len(row.outputs) > 1 for row in ladder[BUDGET].rows or ladder[BUDGET].guided)


def test_rows_may_be_fitted_across_the_switch(pipe, ladder):
    across = searched(pipe, across=True)[BUDGET]
    assert max(len(row.outputs) for row in across.rows or across.guided) == BUDGET, "the last row looks back on all"
    assert across.moving_parts != ladder[BUDGET].moving_parts


def test_what_was_searched_is_what_is_served(pipe, ladder, tmp_path):
    kept = Ladder.load(ladder.save(tmp_path / "l.json"))
    assert kept[BUDGET].origin.switch == switch_of(pipe, STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with budcache.applied(pipe, kept, budget=BUDGET) as handle:
            assert torch.isfinite(drawn(pipe)).all()
    assert handle.stats().last_run_calls == BUDGET


@pytest.mark.parametrize(("ratio", "says"), [(0.6, "here at step 5"), (None, "one network makes all steps")])
def test_another_boundary_is_warned_about(ladder, ratio, says):
    other = KIND.build()
    other.register_to_config(boundary_ratio=ratio)
    with pytest.warns(BudcacheWarning, match=f"second expert takes over at step .*{says}"):
        budcache.apply(other, ladder[BUDGET]).remove()


def test_too_few_calls_for_both_are_refused_before_the_work(pipe):
    with pytest.raises(SearchError, match="2 experts, and a budget of 1 does not compute the first step of each"):
        budcache.search(pipe, steps=STEPS, budgets=[1, 3], prompts=["a", "b"], call=CALL)


def test_show_says_where_the_switch_is(pipe, ladder):
    console = Console(width=120, file=io.StringIO())
    console.print(describe(ladder))
    assert f"two; the second takes over at step {switch_of(pipe, STEPS)}" in console.file.getvalue()


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), switch=st.integers(1, 9), fitted=st.booleans())
def test_no_path_passes_the_switch_without_a_call(seed, switch, fitted):
    steps, rng = 10, np.random.default_rng(seed)
    vectors = rng.standard_normal((3, 2 * steps + 1, 40)).cumsum(1)
    grams = Grams(np.linspace(1, 0, steps + 1), vectors @ vectors.transpose(0, 2, 1) / 40)
    find = ShortestPaths.through(grams, (2, 4), fitted, switch)
    for masks in find((2, 4), 0.5, 2).values():
        assert masks and all(mask[switch] for mask in masks)
        for mask in masks:
            for step, blend in zip(mask.computed, find.stretches.blends(mask), strict=True):
                own = [each for each in mask.computed if each <= step and (each < switch) == (step < switch)]
                assert len(blend) <= len(own)


@pytest.mark.parametrize("options", [{"strategy": "ladder"}, {"strategy": "uniform"}, {"reuse": "residual"}], ids=str)
def test_strategies_that_do_not_know_the_switch_are_refused_before_anything_runs(pipe, options):
    with pytest.raises(SearchError, match="first step must be computed"):
        searched(pipe, **options)
    assert searched(pipe, strategy="uniform", across=True, refine="none")[BUDGET].mask == budcache.Mask.uniform(6, 4)


def test_a_record_knows_the_switch(pipe):
    with budcache.recording(pipe) as record:
        for _ in range(2):
            drawn(pipe)
    (runs,) = record
    assert runs.origin.switch == switch_of(pipe, STEPS)
    (rung,) = record.ladder(budgets=BUDGET)
    assert rung.origin.switch == runs.origin.switch and rung.mask[runs.origin.switch]
    with pytest.raises(budcache.BudcacheError, match="where it takes over in 9 steps is not known"):
        record.ladder(budgets=3, steps=9)
