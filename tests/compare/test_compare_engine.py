"""Comparing in this process: other kinds of pipelines, ladders that are there already, what is left out."""

from __future__ import annotations

import errno
import json
from functools import partial

import numpy as np
import pytest
from filelock import FileLock
from zoo import entry

from budcache import BudcacheWarning, FileError, Ladder, Mask, Policy, SearchError
from budcache import compare as with_timing
from budcache.comparison.methods import METHODS, usual
from budcache.storage.journal import Journal
from budcache.strategies import STRATEGIES

compare = partial(with_timing, timed=())  # timing has tests of its own


def call_of(zoo):
    return {name: value for name, value in zoo.kwargs().items() if name not in ("prompt", "generator")}


@pytest.fixture(scope="module")
def flux():
    zoo = entry("flux")
    return zoo.build(), call_of(zoo)


def test_a_video_is_measured_and_kept_as_one(tmp_path):
    zoo = entry("wan-t2v-euler")
    found = compare(
        zoo.build(),
        steps=4,
        budgets=[2, 4],
        prompts=["a cat"],
        calibration=[],
        folder=tmp_path,
        methods=["uniform"],
        call=call_of(zoo),
    )
    assert [each.name for each in found.measures] == ["psnr", "worst-frame", "steadiness", "ssim"]
    values = found.entry("uniform", 2).values
    assert values["worst-frame"][0] < values["psnr"][0] < 100
    assert 0 < values["steadiness"][0] < 100
    assert found.entry("uniform", 4).values["steadiness"] == (100.0,)
    head = (tmp_path / "comparison.csv").read_text().splitlines()[0].split(",")
    assert {"worst-frame", "steadiness", "steadiness_se", "steadiness_p5", "steadiness_worst"} <= set(head)
    shown = (tmp_path / "comparison.html").read_text()
    assert "Steadiness↑" in shown and f"Steadiness, {found.entry('uniform', 2).title}" in shown
    assert found.entry("uniform", 4).values["psnr"] == (100.0,)  # every step computed: the full run, bit for bit
    assert np.load(tmp_path / "samples" / "full-4" / "000.npy").ndim == 4
    assert (tmp_path / "pictures" / "uniform-2" / "000.webp").read_bytes().startswith(b"RIFF")
    assert (tmp_path / "pictures" / "uniform-2" / "000.png").read_bytes().startswith(b"\x89PNG")


def test_what_only_videos_have_is_refused_for_pictures(flux, tmp_path):
    pipe, call = flux
    asked = {"steps": 4, "budgets": [2], "prompts": ["a"], "folder": tmp_path, "methods": ["uniform"]}
    with pytest.raises(SearchError, match="Steadiness is of videos, and FluxPipeline makes pictures"):
        compare(pipe, **asked, metrics=["psnr", "steadiness"], call=call)
    zoo = entry("wan-t2v-euler")
    with pytest.raises(SearchError, match="makes pictures here"):
        compare(zoo.build(), **asked, metrics=["steadiness"], call={**call_of(zoo), "num_frames": 1})
    found = compare(zoo.build(), **asked, call={**call_of(zoo), "num_frames": 1})
    assert [each.name for each in found.measures] == ["psnr", "ssim"]


def test_what_does_not_support_the_model_is_left_out_with_its_reason(tmp_path):
    zoo = entry("sdxl")
    found = compare(
        zoo.build(),
        steps=4,
        budgets=[2, 3],
        prompts=["a cat"],
        calibration=["a dog"],
        folder=tmp_path,
        methods=["uniform", "teacache"],
        metrics=["psnr"],
        call=call_of(zoo),
    )
    assert list(found.methods) == ["uniform"]
    (absent,) = found.left_out
    assert (absent.method, absent.budgets) == ("teacache", (2, 3))
    assert "UNet2DConditionModel" in absent.reason


def test_ladders_that_are_there_are_taken_as_they_are(flux, tmp_path):
    pipe, call = flux
    plain = Ladder.of([Policy(mask=Mask.of(6, [0, 2, 3])), Policy(mask=Mask.of(6, [0, 1, 2, 5]))])
    fitted = Ladder.of([Policy(mask=Mask.of(6, [0, 2, 3]), weights=((1.0,), (1.2, -0.2), (1.1, -0.1)))])

    def run():
        return compare(
            pipe,
            steps=6,
            budgets=[3, 4],
            policies={"budcache-plain": plain, "budcache": fitted},
            prompts=["a cat", "a dog"],
            calibration=[],
            folder=tmp_path,
            methods=["uniform"],
            call=call,
        )

    found = run()
    assert found.entry("budcache", 3).masks == (fitted[3].mask,) * 2
    assert found.entry("budcache-plain", 4).masks == (plain[4].mask,) * 2
    assert found.entry("budcache", 3).values != found.entry("budcache-plain", 3).values
    ((name, budgets, reason),) = [(out.method, out.budgets, out.reason) for out in found.left_out]
    assert (name, budgets) == ("budcache", (4,))
    assert "no rung of 4 calls" in reason
    # Run again, all of it is kept; another ladder in its place is drawn anew.
    assert run() == found
    fitted = Ladder.of([Policy(mask=Mask.of(6, [0, 1, 5]))])
    again = run()
    assert again.entry("budcache", 3).masks == (fitted[3].mask,) * 2
    assert again.entry("uniform", 3) == found.entry("uniform", 3)


@pytest.mark.slow
def test_the_pipeline_is_left_as_it_was(flux, tmp_path):
    pipe, call = flux
    pipe("a cat", num_inference_steps=1, **call)  # its first run leaves some attributes, whoever makes it
    scheduler, parts = pipe.scheduler, dict(vars(pipe))
    methods = ["uniform", "teacache", "taylorseer", "budcache"]
    given = {"prompts": ["a cat"], "calibration": ["a", "b", "c", "d"], "folder": tmp_path, "methods": methods}
    found = compare(pipe, steps=5, budgets=[3], **given, call=call)
    assert found.left_out == ()
    assert pipe.scheduler is scheduler
    assert vars(pipe).keys() == parts.keys()


def test_every_method_there_is_has_a_name_for_people():
    from budcache.baselines import BASELINES

    assert set(BASELINES) <= set(METHODS)
    assert {"fewer-steps", "uniform", "teacache", "budcache"} <= set(usual()) <= set(METHODS)
    assert "authors" not in usual()


def test_the_published_search_takes_part_when_asked_for(flux, tmp_path):
    pipe, call = flux
    given = {"prompts": ["a cat"], "calibration": ["a", "b"], "folder": tmp_path, "methods": ["authors-quick"]}
    found = compare(pipe, steps=4, budgets=[2], **given, call=call)
    assert found.entry("authors-quick", 2).calls == (2,)


def test_on_wan_the_published_search_is_the_one_for_wan(tmp_path):
    zoo = entry("wan-t2v-euler")
    given = {"prompts": ["a cat"], "calibration": ["a", "b"], "folder": tmp_path, "methods": ["authors"]}
    found = compare(zoo.build(), steps=4, budgets=[2], metrics=["psnr"], **given, call=call_of(zoo))
    assert (found.entry("authors", 2).calls, found.entry("authors", 2).learned_on) == ((2,), 2)
    header = json.loads((tmp_path / "authors-2.ledger.jsonl").read_text().splitlines()[0])["search"]
    assert header["objective"] == "pixel"
    assert header["strategy"] == repr(STRATEGIES["authors-wan"])


@pytest.mark.parametrize("method", ["budcache", "authors-quick"])
def test_a_search_in_use_ends_it(method, flux, tmp_path):
    pipe, call = flux
    given = {"prompts": ["a cat"], "calibration": ["a", "b"], "folder": tmp_path, "methods": [method]}
    file = tmp_path / ("search.ledger.jsonl" if method == "budcache" else "authors-quick-2.ledger.jsonl")
    says = r"is in use by another process\. Wait for it, or choose another place\."
    with FileLock(file.with_name(f".{file.name}.lock")), pytest.raises(SearchError, match=says):
        compare(pipe, steps=4, budgets=[2], **given, call=call)


def test_a_full_disk_while_searching_ends_it(flux, tmp_path, monkeypatch):
    pipe, call = flux
    usual = Journal.write

    def write(self, entry):
        if self.kind == "ledger":
            raise self._unwritable(OSError(errno.ENOSPC, "No space left on device"))
        usual(self, entry)

    monkeypatch.setattr(Journal, "write", write)
    given = {"prompts": ["a cat"], "calibration": ["a", "b"], "folder": tmp_path, "methods": ["uniform", "budcache"]}
    with pytest.raises(SearchError, match="cannot be written: No space left on device"):
        compare(pipe, steps=4, budgets=[2], metrics=["psnr"], **given, call=call)


def test_a_folder_that_cannot_be_written_ends_it(flux, tmp_path):
    """It is nobody's fault among the methods, so none of them is left out for it."""
    pipe, call = flux
    (tmp_path / "pictures").write_text("in the way")
    given = {"prompts": ["a cat"], "calibration": [], "folder": tmp_path, "methods": ["uniform"]}
    with pytest.raises(FileError, match=r"^[^:]*pictures.* cannot be written: Not a directory\."):
        compare(pipe, steps=3, budgets=[2], **given, call=call)


def test_seen_prompts_are_warned_of(flux, tmp_path):
    pipe, call = flux
    with pytest.warns(BudcacheWarning, match="used both to calibrate and to measure, such as 'a cat'"):
        compare(
            pipe,
            steps=3,
            budgets=[2],
            prompts=["a cat"],
            calibration=["a cat"],
            folder=tmp_path,
            methods=["uniform"],
            call=call,
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgets": [9]}, "budget of 9 does not fit 6 steps"),
        ({"budgets": []}, "no budget"),
        ({"methods": ["nonsense"]}, "no method 'nonsense'"),
        ({"methods": ["teacache"]}, "TeaCache is brought to a budget on calibration prompts"),
        ({"prompts": []}, "no prompts to measure on"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_work(flux, change, message, tmp_path):
    pipe, call = flux
    given = {"steps": 6, "budgets": [3], "prompts": ["a"], "calibration": [], "methods": ["uniform"]}
    with pytest.raises(SearchError, match=message):
        compare(pipe, folder=tmp_path / "new", **(given | change), call=call)
    assert not (tmp_path / "new").exists()
