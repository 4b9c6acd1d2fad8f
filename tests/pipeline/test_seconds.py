"""By time: the largest rung that fits into the seconds that a run may take."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from helpers import flux, latents

import budcache
from budcache import BudcacheError, Ladder, PipelineError, Policy, PolicyError
from budcache.pipeline import clock
from budcache.pipeline.seconds import Timings, kept_beside

LADDER = Ladder.of([Policy(mask="100100"), Policy(mask="110100"), Policy(mask="110101")])
BEFORE, CALL, AFTER = 0.05, 0.1, 0.2
SIZE = {"height": 16, "width": 16, "prompt": "a cat", "max_sequence_length": 16}


@pytest.fixture
def known(monkeypatch):
    """A pipeline whose parts take a known time by a clock of its own, and how many calls it has made."""
    kind, pipe = flux()
    now = SimpleNamespace(seconds=0.0, calls=0)
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: now.seconds))

    def takes(seconds, calls=0):
        def hook(*_):
            now.seconds, now.calls = now.seconds + seconds, now.calls + calls

        return hook

    pipe.text_encoder.register_forward_hook(takes(BEFORE))
    pipe.transformer.register_forward_hook(takes(CALL, 1))
    pipe.vae.decoder.register_forward_hook(takes(AFTER))
    pipe.now = now
    return kind, pipe


@pytest.mark.parametrize(("seconds", "budget"), [(0.46, 2), (0.6, 3), (0.66, 4), (0.84, 4), (0.86, 6), (100, 6)])
def test_the_largest_rung_that_fits(known, seconds, budget):
    kind, pipe = known
    with budcache.applied(pipe, LADDER, seconds=seconds, call=SIZE) as handle:
        assert handle.policy.budget == budget
        assert handle.stats().runs == 0 and handle.stats().budgets == {}, "what was timed does not count"
        latents(kind, pipe)
        assert handle.stats().last_run_calls == budget
    assert f"fit{'s' if budget == 6 else ''} into {seconds:g} s: 0.05 s + {budget} x 0.1 s + 0.2 s" in handle.reason
    if budget == 3:
        assert handle.reason.endswith("the next, 4 calls, would take 0.65 s.")


def test_where_all_fits_it_is_the_full_run_bit_for_bit(known):
    kind, pipe = known
    bare = latents(kind, pipe)
    with budcache.applied(pipe, LADDER, seconds=9.0, call=SIZE) as handle:
        assert torch.equal(latents(kind, pipe), bare)
    assert "the full run of 6 calls fits into 9 s" in handle.reason


def test_too_little_time_is_said_with_the_number(known):
    _, pipe = known
    original = pipe.scheduler
    with pytest.raises(
        PolicyError, match=r"smallest rung, 2 calls, takes 0\.45 s .* there are 0\.3 s\. Give 0\.45 sec"
    ):
        budcache.apply(pipe, LADDER, seconds=0.3, call=SIZE)
    assert pipe.scheduler is original


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "2", True])
def test_a_time_is_a_positive_number(known, seconds):
    _, pipe = known
    with pytest.raises(PolicyError, match="positive number"):
        budcache.apply(pipe, LADDER, seconds=seconds)
    assert pipe.now.calls == 0


def test_wrong_questions_get_a_sentence_before_anything_runs(known):
    _, pipe = known
    for options, words in (
        ({"seconds": 1.0, "budget": 3}, "both given"),
        ({"seconds": 1.0, "call": {"hieght": 64}}, "no argument 'hieght'"),
        ({"second": 1.0}, "Did you mean seconds"),
    ):
        with pytest.raises(BudcacheError, match=words):
            budcache.apply(pipe, LADDER, **options)
    assert pipe.now.calls == 0


def test_what_the_pipeline_refuses_is_a_sentence(known):
    _, pipe = known
    with pytest.raises(PipelineError, match=r"cannot be timed: .* call="):
        budcache.apply(pipe, LADDER, seconds=1.0, call={"prompt": 3})
    assert not isinstance(pipe.scheduler, budcache.BudcacheScheduler)


def test_a_measurement_is_kept_beside_the_ladder_and_holds_for_its_settings(known, tmp_path):
    _, pipe = known
    path = LADDER.save(tmp_path / "l.ladder.json")

    def calls(**more) -> int:
        before = pipe.now.calls
        options = {"seconds": 0.6, **more}
        with budcache.applied(pipe, path, call={**SIZE, **options.pop("call", {})}, **options) as handle:
            assert handle.policy.budget == 3
        return pipe.now.calls - before

    assert calls() == 2 * (1 + 5)  # one run of the smallest rung to warm up, five to time it
    assert calls() == 0
    assert calls(measure_again=True) > 0
    assert calls(call={"prompt": "another prompt"}) == 0
    assert calls(call={"height": 32}) > 0
    assert calls(call={"prompt": ["a cat", "a dog"]}) > 0
    assert calls(call={"num_images_per_prompt": 2}) > 0
    file = kept_beside(path)
    assert file.name == "l.ladder.timings.json"
    kept = Timings.model_validate(json.loads(file.read_text()))
    assert [(t.on.call["height"], t.on.batch) for t in kept.timings] == [(16, 1), (32, 1), (16, 2), (16, 2)]
    assert "cat" not in file.read_text(), "a prompt is nobody's business"
    first = kept.timings[0]
    assert (first.on.device, first.on.dtype) == ("cpu", "float32") and first.on.versions["torch"]
    assert (first.before, first.call, first.after) == pytest.approx((BEFORE, CALL, AFTER))
    assert calls() == 0


def test_the_place_of_a_measurement_is_that_of_the_file(known, tmp_path, monkeypatch):
    """Which a folder stands for, too; and it matters only where a time is named."""
    _, pipe = known
    monkeypatch.chdir(tmp_path)
    for name in ("ladder.json", "me/flux/ladder.json"):
        LADDER.save(tmp_path / name)
    for folder, file in ((".", "ladder.timings.json"), ("me/flux", "me/flux/ladder.timings.json")):
        with budcache.applied(pipe, folder, budget=3) as handle:
            assert not (tmp_path / file).exists()
            handle.use(seconds=0.6, call=SIZE)
        assert (tmp_path / file).exists()
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {"ladder.json", "ladder.timings.json"}
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    for chosen in ({"budget": 3}, {"seconds": 1.0}):
        with pytest.raises(BudcacheError, match="folder"):
            budcache.apply(pipe, ".", **chosen)


def test_a_file_that_is_none_is_said_and_not_overwritten(known, tmp_path):
    _, pipe = known
    path = LADDER.save(tmp_path / "l.json")
    for text in ("{", '{"kind": "timings", "version": 2}', '{"kind": "policy"}'):
        kept_beside(path).write_text(text)
        with pytest.raises(PolicyError, match=r"l\.timings\.json"):
            budcache.apply(pipe, path, seconds=1.0, call=SIZE)
        assert kept_beside(path).read_text() == text


def test_a_ladder_in_memory_is_timed_once_a_process(known):
    _, pipe = known
    for _ in range(2):
        with budcache.applied(pipe, LADDER, seconds=0.6, call=SIZE) as handle:
            assert handle.policy.budget == 3
    assert pipe.now.calls == 12


def test_a_handle_changes_by_time_and_does_not_touch_the_programs_random_numbers(known):
    kind, pipe = known
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with budcache.applied(pipe, LADDER, budget=4) as handle:
        latents(kind, pipe)
        assert handle.use(seconds=0.5, call=SIZE).budget == 2 and "2 of 6" in handle.reason
        with pytest.raises(PolicyError, match="even the smallest"):
            handle.use(seconds=0.1, call=SIZE)
        assert handle.policy.budget == 2
        assert handle.use(budget=3).budget == 3 and handle.reason is None
        assert handle.stats().budgets == {4: (1, 4, 2)}
    assert torch.equal(torch.rand(1), expected)


def test_with_the_real_clock_the_choice_follows_from_the_measurement(tmp_path):
    _, pipe = flux()
    path = LADDER.save(tmp_path / "l.json")
    with budcache.applied(pipe, path, seconds=600.0, call=SIZE) as handle:
        assert handle.policy.budget == 6
        (timing,) = Timings.model_validate(json.loads(kept_beside(path).read_text())).timings
        assert timing.before > 0 and timing.call > 0 and timing.after > 0
        for budget in LADDER.budgets:
            assert handle.use(seconds=timing.seconds(budget) + timing.call / 2, call=SIZE).budget == budget
