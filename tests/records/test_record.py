"""Records: what is added up, kept in files, read back, and refused."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import recorded
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as torch_file

from budcache import BudcacheError, FileError, Ladder, Record, RecordError, SearchError
from budcache.policy import Origin
from budcache.records import paths, stretches
from budcache.records.gram import Grams
from budcache.records.record import VERSION, Runs

HERE = Origin(model="toy", pipeline="ToyPipeline", weights="abc", guidance=3.5)


@cache
def runs(steps=10, samples=2, seed=0):
    return Runs(HERE, recorded(steps=steps, samples=samples, seed=seed)[1])


def record(*groups):
    found = Record()
    for group in groups or (runs(),):
        found.add(group)
    return found


def same(one, other):
    return [(g.origin, g.grams.levels.tolist(), g.grams.products.tolist()) for g in one] == [
        (g.origin, g.grams.levels.tolist(), g.grams.products.tolist()) for g in other
    ]


def test_runs_of_the_same_kind_add_up_and_others_are_kept_apart():
    found = record(runs(), runs(seed=2), runs(steps=6), Runs(HERE.model_copy(update={"guidance": 5.0}), runs().grams))
    assert [(len(group.grams.products), group.steps) for group in found] == [(4, 10), (2, 6), (2, 10)]
    assert len(found) == 8
    assert repr(found) == "<Record of 6 runs of 10 steps in 2 kinds and 2 runs of 6 steps>"


def test_runs_say_what_they_are():
    assert str(runs()) == "2 runs of 10 steps: toy, guidance 3.5, noise level 0.66667 halfway"


def test_only_records_add_up():
    with pytest.raises(TypeError, match="unsupported operand"):
        record() + 3


def test_the_same_model_in_another_folder_is_the_same_model():
    elsewhere = HERE.model_copy(update={"model": "another/folder", "versions": {"torch": "1"}})
    assert len(record(runs(), Runs(elsewhere, runs(seed=2).grams)).groups) == 1


def test_records_of_several_days_are_one_record():
    monday, tuesday = record(runs()), record(runs(seed=2), runs(steps=6))
    week = monday + tuesday
    assert len(week) == 6
    assert len(monday) == 2, "adding changes neither"
    assert same(week, record(runs(), runs(seed=2), runs(steps=6)))


def test_a_record_comes_back_as_it_was_saved(tmp_path):
    before = record(runs(), runs(steps=6))
    path = before.save(tmp_path / "days" / "runs.record")
    assert same(Record.load(path), before)
    assert path.stat().st_size < 10_000


def test_an_empty_record_is_a_record(tmp_path):
    assert len(Record.load(Record().save(tmp_path / "none.record"))) == 0
    assert repr(Record()) == "<Record of nothing yet>"
    with pytest.raises(RecordError, match="the record has nothing yet, and policies take two runs or more"):
        Record().ladder([3])


def test_one_run_is_not_enough_for_policies():
    with pytest.raises(RecordError, match="has 1 run of 10 steps, and policies take two runs or more of one kind"):
        record(runs(samples=1)).ladder([3])
    carried = record(runs(samples=1), runs(steps=6)).ladder(3, steps=10)
    assert carried == record(runs(steps=6)).ladder(3, steps=10), "two runs of 6 steps say more than one of 10"


def test_a_ladder_comes_from_the_runs_alone():
    known, grams = recorded()
    ladder = record(Runs(HERE, grams)).ladder([2, 3, 5])
    assert isinstance(ladder, Ladder)
    assert ladder.budgets == (2, 3, 5)
    assert all(len(rung.weights) == rung.budget for rung in ladder)
    assert {rung.refined[0].how for rung in ladder} == {"from full runs"}
    assert {rung.origin.weights for rung in ladder} == {"abc"}
    assert {rung.origin.prompts for rung in ladder} == {4}
    losses = [sum(known.losses(known.finals(rung))) for rung in ladder]
    assert losses == sorted(losses, reverse=True), "more calls come nearer"


def test_a_ladder_of_other_steps_comes_from_the_nearest_runs():
    found = record(runs(steps=6), runs(steps=10))
    assert found.ladder(3, steps=12).steps == 12
    assert found.ladder(3, steps=10) == record(runs(steps=10)).ladder(3)
    assert found.ladder(3, steps=12) == record(runs(steps=10)).ladder(3, steps=12)


def test_other_steps_are_nearly_as_good_as_runs_of_so_many():
    """On the toy, whose outputs bend gently: within a factor of four of a record made there."""
    known, there = recorded(steps=20, samples=4)
    carried = record(Runs(HERE, recorded(steps=10, samples=4)[1])).ladder([4, 6], steps=20)
    at_home = record(Runs(HERE, there)).ladder([4, 6])
    for far, near in zip(carried, at_home, strict=True):
        far_loss, near_loss = (sum(known.losses(known.finals(rung))) for rung in (far, near))
        assert far_loss < 4 * near_loss


@pytest.mark.parametrize(
    ("budgets", "options", "says"),
    [
        ([], {}, "no budget"),
        ([11], {}, "11 does not fit 10 steps"),
        ([0], {}, "0 does not fit"),
        ("5", {}, "budgets must be whole"),
        (2.5, {}, "budgets must be whole"),
        ([3], {"steps": 0}, "a run of 0 steps is not possible"),
        ([3], {"steps": -3}, "a run of -3 steps is not possible"),
        ([3], {"steps": "12"}, "steps must be whole"),
        ([3], {"steps": 2}, "3 does not fit 2 steps"),
        ([3], {"steps": 200}, "stretches of 200 steps would be too large"),
    ],
)
def test_ladders_that_cannot_be_are_refused(budgets, options, says):
    with pytest.raises(SearchError, match=says):
        record().ladder(budgets, **options)


def test_a_ladder_comes_from_the_kind_with_the_most_runs():
    guided = Runs(HERE.model_copy(update={"guidance": 5.0}), runs(samples=3).grams)
    found = record(runs(), guided, runs(steps=6))
    assert found.source() is guided
    assert found.source(10) is guided
    assert found.source(7).steps == 6


def test_runs_like_those_of_a_search_are_found_or_the_difference_told():
    levels = runs().grams.levels
    assert record().like(HERE, 10, levels).samples == 2
    assert record().like(HERE, 10).samples == 2
    for origin, steps, at, says in (
        (HERE.model_copy(update={"guidance": 7.0}), 10, levels, "guidance is"),
        (HERE.model_copy(update={"guidance": 7.0}), 10, None, "guidance is"),
        (HERE, 9, levels[:-1], "it has 2 runs of 10 steps, and the search is of 9"),
        (HERE, 10, levels * 1.1, "noise levels differ"),
    ):
        with pytest.raises(RecordError, match=says):
            record().like(origin, steps, at)
    twice = record(runs(), Runs(HERE, Grams(levels * 2, runs().grams.products)))
    with pytest.raises(RecordError) as caught:
        twice.like(HERE, 10, levels * 3)
    assert str(caught.value).count("noise levels differ") == 1


@pytest.mark.parametrize(
    "levels", [[*np.linspace(0.9, 0, 10), 0.0], list(np.linspace(0, 1, 11))], ids=["last twice, as DDIM", "rising"]
)
def test_levels_that_stay_or_rise_are_recorded_saved_and_read(levels, tmp_path):
    odd = record(Runs(HERE, Grams(np.array(levels), runs().grams.products)))
    assert same(Record.load(odd.save(tmp_path / "odd.record")), odd)
    assert odd.ladder([3]).steps == 10


def test_masks_of_very_many_runs_are_found_from_some_of_them(monkeypatch):
    many = Grams(runs().grams.levels, np.repeat(runs().grams.products, 3, axis=0))
    monkeypatch.setattr(paths, "RUNS", 3)
    monkeypatch.setattr(stretches, "AT_ONCE", 5)
    few = Grams(many.levels, many.products[[0, 2, 5]])
    assert record(Runs(HERE, many)).ladder([3])[3].mask == record(Runs(HERE, few)).ladder([3])[3].mask


# Files are data: whatever is in them, the answer is a record or a sentence.


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return record(runs(), runs(steps=6)).save(tmp_path_factory.mktemp("saved") / "runs.record").read_bytes()


def refused(path, says=None):
    with pytest.raises(BudcacheError, match=says) as caught:
        Record.load(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_what_is_not_there_or_no_file_is_said(tmp_path):
    refused(tmp_path / "none.record", "there is no file")
    refused(tmp_path)
    with pytest.raises(FileError, match="cannot be written"):
        record().save(tmp_path)


def test_every_truncated_record_is_refused(saved, tmp_path):
    path = tmp_path / "cut.record"
    for length in {*range(0, len(saved), max(1, len(saved) // 60)), len(saved) - 1}:
        path.write_bytes(saved[:length])
        refused(path, "not a record, or not all of it|cannot be read")


def rewritten(saved, path, change):
    """The record with its header or arrays changed."""
    path.write_bytes(saved)
    arrays = load_file(path)
    header = json.loads(_header_of(saved))
    change(header, arrays)
    save_file(arrays, path, {"budcache": json.dumps(header)})
    return path


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda header, arrays: header.update(version=VERSION + 1), "Upgrade budcache"),
        (lambda header, arrays: header.update(version=0), "not a record of budcache"),
        (lambda header, arrays: header.update(version=True), "not a record of budcache"),
        (lambda header, arrays: header.update(kind="policy"), "not a record of budcache"),
        (lambda header, arrays: header.update(blocks=["latents"]), "not a record of budcache"),
        (lambda header, arrays: header.update(origins={}), "not a record of budcache"),
        (lambda header, arrays: header["origins"].append({}), "number 2 make no sense"),
        (lambda header, arrays: header["origins"].__setitem__(0, {"models": 1}), "number 0 make no sense"),
        (lambda header, arrays: arrays.pop("levels.1"), "number 1 make no sense"),
        (lambda header, arrays: arrays["levels.0"].__setitem__(3, 2.0), "make no sense"),
        (lambda header, arrays: arrays["levels.0"].__setitem__(3, np.nan), "make no sense"),
        (lambda header, arrays: arrays["products.0"].__setitem__((0, 0), np.inf), "make no sense"),
        (lambda header, arrays: arrays["products.0"].__setitem__((0, 0), 1e300), "make no sense"),
        (lambda header, arrays: arrays.update({"products.0": np.zeros((0, 231))}), "make no sense"),
        (lambda header, arrays: arrays.update({"products.0": np.zeros((2, 7))}), "make no sense"),
        (lambda header, arrays: arrays.update({"products.0": np.zeros((2, 231), np.float32)}), "make no sense"),
        (lambda header, arrays: arrays.update({"levels.0": np.zeros(2000)}), "make no sense"),
        (lambda header, arrays: arrays.update({"levels.0": np.ones((11, 2))}), "make no sense"),
        (lambda header, arrays: arrays.update({"levels.0": np.zeros(11)}), "make no sense"),
        (lambda header, arrays: arrays.update({"levels.0": np.linspace(-1, -2, 11)}), "make no sense"),
        (lambda header, arrays: arrays.update({"products.0": -np.ones((2, 231))}), "make no sense"),
        (lambda header, arrays: arrays["products.0"].__setitem__((0, 1), 1e30), "make no sense"),
    ],
)
def test_what_makes_no_sense_is_refused(saved, tmp_path, change, says):
    refused(rewritten(saved, tmp_path / "odd.record", change), says)


def test_number_formats_that_numpy_does_not_have_are_refused(saved, tmp_path):
    path = tmp_path / "brain.record"
    torch_file({"levels.0": torch.ones(3, dtype=torch.bfloat16)}, path, {"budcache": _header_of(saved)})
    refused(path, "cannot be read|make no sense")


def _header_of(saved):
    return json.loads(saved[8 : 8 + int.from_bytes(saved[:8], "little")])["__metadata__"]["budcache"]


def test_another_file_of_that_format_is_no_record(tmp_path):
    save_file({"weights": np.zeros(3)}, tmp_path / "model.safetensors")
    refused(tmp_path / "model.safetensors", "not a record of budcache")


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spoilt_bytes_give_a_record_or_a_sentence(saved, tmp_path, data):
    spoilt = bytearray(saved)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(saved) - 1) | st.integers(0, 600))
        spoilt[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "spoilt.record"
    path.write_bytes(bytes(spoilt))
    try:
        Record.load(path).ladder([2, 3])
    except BudcacheError as error:
        assert "\n" not in str(error)


@given(
    st.integers(1, 6), st.integers(1, 3), st.floats(0, 1e30), st.sampled_from(["zeros", "ones", "noise", "negative"])
)
@settings(max_examples=60, deadline=None)
def test_products_that_no_run_has_give_policies_all_the_same(steps, samples, size, kind):
    rows = 2 * steps + 1
    noise = np.random.default_rng(steps).normal(size=(samples, rows, rows))
    products = {"zeros": 0 * noise, "ones": 0 * noise + 1, "noise": noise, "negative": -abs(noise)}[kind] * size
    odd = Record([Runs(HERE, Grams(np.linspace(1, 0, steps + 1), (products + products.transpose(0, 2, 1)) / 2))])
    try:
        assert odd.ladder([1, steps]).steps == steps
    except BudcacheError as error:
        assert "\n" not in str(error)
