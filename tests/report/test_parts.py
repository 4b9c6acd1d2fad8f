"""The parts of a page that say something of every sample: pictures, prompts, promises, exports."""

from __future__ import annotations

import base64
import gzip
import io
import json

import numpy as np
import pytest
from comparisons import LPIPS, STEPS, comparison, draw, film
from PIL import Image

from budcache import Ladder, Mask, Policy
from budcache.comparison import Comparison, Measure
from budcache.comparison.kept import picture
from budcache.comparison.numbers import rows
from budcache.metrics import METRICS
from budcache.provenance import Quality
from budcache.report import exports, promises
from budcache.report.gallery import AMPLIFIED, gallery
from budcache.report.page import page
from budcache.report.per_prompt import MOST_ROWS, per_prompt

ROOM = 2_000_000


def with_values(found, method, values, measure="psnr"):
    entries = [
        entry.model_copy(update={"values": {**entry.values, measure: values}}) if entry.method == method else entry
        for entry in found.entries
    ]
    return found.model_copy(update={"entries": tuple(entries)})


def pixels(uri):
    return np.asarray(
        Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/webp;base64,")))).convert("RGB")
    )


def test_worst_cases_come_first():
    found = with_values(comparison(), "budcache", (30.0, 10.0, 20.0))
    table = per_prompt(found, 5)
    assert [row.prompt for row in table.rows] == ["two dogs", "red", "a cat"]
    assert table.titles[0] == "budcache"
    assert [row.cells[0] for row in table.rows] == [("10.0", False), ("20.0", False), ("30.0", True)]
    assert table.lost == 2
    best = max(found.entry(method, 5).values["psnr"][1] for method in ("uniform", "teacache"))
    assert table.rows[0].lead == pytest.approx(10 - best)
    assert table.rows[0].written.startswith("−")
    assert table.rows[2].written.startswith("+")


def test_where_low_is_good_the_worst_is_high():
    found = comparison().model_copy(update={"measures": (LPIPS,)})
    table = per_prompt(with_values(found, "budcache", (0.0, 0.9, 0.1), "lpips"), 5)
    assert [row.prompt for row in table.rows] == ["two dogs", "red", "a cat"]
    assert [row.cells[0] for row in table.rows[::2]] == [("0.9000", False), ("0.0000", True)]
    assert table.rows[0].lead < 0 < table.rows[2].lead


@pytest.mark.parametrize("stronger", ["uniform", "teacache"])
def test_the_strongest_of_the_others_stands_beside_ours(stronger, tmp_path):
    found = with_values(with_values(comparison(), "uniform", (20.0,) * 3), "teacache", (20.0,) * 3)
    found = with_values(found, stronger, (25.0,) * 3)
    assert per_prompt(found, 5).titles[:2] == ["budcache", found.methods[stronger]]
    shown = gallery(found, tmp_path, ROOM).shots[5][0]
    assert [shot.entry.title for shot in shown] == per_prompt(found, 5).titles, "cards have the same order"


def test_a_picture_says_its_calls_where_they_are_not_the_budgets(tmp_path):
    found = comparison()
    entries = [
        entry.model_copy(update={"calls": (4,) * 3}) if (entry.method, entry.budget) == ("teacache", 5) else entry
        for entry in found.entries
    ]
    shown = gallery(found.model_copy(update={"entries": tuple(entries)}), tmp_path, ROOM)
    notes = {shot.entry.method: shot.note for shot in shown.shots[5][0]}
    assert notes["teacache"].endswith(" dB, 4 calls")
    assert notes["budcache"].endswith(" dB")


def test_a_long_table_says_what_it_leaves_out(tmp_path):
    found = comparison(prompts=tuple(f"prompt {i}" for i in range(MOST_ROWS + 7)), budgets=(3,))
    assert (len(per_prompt(found, 3).rows), per_prompt(found, 3).left) == (MOST_ROWS, 7)
    assert "7 better ones are left out here" in page(found, tmp_path)


def test_pictures_go_from_the_worst_of_ours_to_its_best(tmp_path):
    prompts = tuple(f"prompt {i}" for i in range(31))
    found = with_values(comparison(prompts=prompts), "budcache", tuple(float((7 * i) % 31) for i in range(31)))
    shown = gallery(found, tmp_path, ROOM)
    values = [found.entry("budcache", 5).values["psnr"][original.number] for original in shown.originals]
    assert values == [0, 6, 12, 18, 24, 30]
    assert all(shots[0].ours for shots in shown.shots[5])
    assert [shot.note for shots in shown.shots[5] for shot in shots[:1]] == [f"{value:.1f} dB" for value in values]


def test_small_pictures_are_kept_whole_and_differences_amplified(tmp_path):
    found = comparison()
    draw(found, tmp_path)
    shown = gallery(found, tmp_path, ROOM)
    assert shown.tiny
    assert (shown.size, shown.frames) == ((24, 16), 1)
    for original, shots in zip(shown.originals, shown.shots[5], strict=True):
        full = np.asarray(Image.open(picture(tmp_path, "full", STEPS, original.number)))
        assert np.array_equal(pixels(original.picture), full)
        for shot in shots:
            drawn = np.asarray(Image.open(picture(tmp_path, shot.entry.method, 5, original.number)))
            assert np.array_equal(pixels(shot.picture), drawn)
            apart = np.abs(drawn.astype(int) - full).max(axis=2, keepdims=True)
            assert np.array_equal(pixels(shot.difference), np.repeat((AMPLIFIED * apart).clip(0, 255), 3, axis=2))


@pytest.mark.parametrize(("numbers", "ending"), [(True, ".webp"), (False, ".webp"), (False, ".gif")])
def test_a_video_is_a_strip_of_its_frames(tmp_path, numbers, ending):
    found = comparison(budgets=(3,), methods=("budcache",))
    frames = film(found, tmp_path, numbers=numbers, ending=ending)
    shown = gallery(found, tmp_path, ROOM)
    assert (shown.size, shown.frames) == ((24, 16), 4)
    for original, (shot,) in zip(shown.originals, shown.shots[3], strict=True):
        strip, kept = pixels(shot.picture), frames["budcache", 3, original.number]
        assert strip.shape == (16, 4 * 24, 3)
        off = np.abs(strip.astype(int) - np.concatenate(kept, axis=1).astype(int))
        assert off.max() == 0 if ending == ".webp" else off.mean() < 12, "a GIF has fewer colours"


def test_a_long_video_is_thinned_out_evenly(tmp_path):
    found = comparison(budgets=(3,), methods=("budcache",))
    film(found, tmp_path, count=81)
    shown = gallery(found, tmp_path, ROOM)
    assert shown.frames == 24
    # Thinned out, it plays as fast as it is: 81 frames at 16 a second are five seconds.
    assert shown.frames * shown.pace == pytest.approx(1000 * 81 / 16, abs=24)
    slower = gallery(found.model_copy(update={"fps": 8}), tmp_path, ROOM)
    assert slower.pace == pytest.approx(2 * shown.pace, abs=1)
    assert f'data-pace="{shown.pace}"' in page(found, tmp_path)


def test_a_page_of_large_clips_stays_light(tmp_path):
    """Noise, of which nothing can be saved."""
    found = comparison(prompts=("a", "b"), budgets=(3,), methods=("uniform", "budcache"))
    film(found, tmp_path, count=12, size=(224, 160), numbers=True)
    written = page(found, tmp_path)
    assert len(written.encode()) < 3_000_000
    assert "Tap the clip to enlarge it. All clips play together." in written


def test_less_room_means_fewer_prompts(tmp_path):
    found = comparison(prompts=tuple("abcdef"))
    film(found, tmp_path)
    counts = [len(gallery(found, tmp_path, room).originals) for room in (ROOM, 200_000, 60_000, 0)]
    assert counts[0] == 6
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_exports_hold_everything():
    found = comparison()
    data = json.loads(gzip.decompress(base64.b64decode(exports.packed(found))))
    assert Comparison.model_validate(data["comparison"]) == found
    assert data["rows"] == rows(found)
    assert exports.packed(found) == exports.packed(found)


def test_a_page_without_room_for_the_numbers_says_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(exports, "MOST", 100)
    text = page(comparison(), tmp_path)
    assert "all numbers are in comparison.json" in text
    assert 'data-export="' not in text


def between_settings(count):
    """TeaCache with a second setting, of so many samples: 2 calls, and 8."""
    found = comparison(prompts=tuple(f"prompt {n}" for n in range(count)), methods=("teacache",), budgets=(5,))
    entry = found.entry("teacache", 5).model_copy(update={"calls": (2,) * count, "memory": 5, "full_memory": 6})
    second = entry.model_copy(update={"calls": (8,) * count, "memory": 7, "full_memory": 9})
    return found.model_copy(update={"entries": (found.full, entry.model_copy(update={"second": second}))})


def test_dots_are_of_both_settings_however_many_samples_there_are():
    (row,) = promises.spreads(between_settings(300), 5)
    assert row.calls.text == "2 to 8"
    assert row.calls.low < row.calls.target < row.calls.high


def test_peak_memory_is_that_of_both_settings():
    found = between_settings(2)
    assert (found.memory(found.entry("teacache", 5)), found.memory(found.full)) == (7, 9)


def test_promises_stand_beside_what_came_of_them(tmp_path):
    qualities = {3: Quality(psnr=25.04, psnr_error=1.5, samples=4, used_to_choose=True), 5: None, 7: Quality(psnr=9)}
    ladder = Ladder.of(Policy(mask=Mask.uniform(STEPS, budget), quality=each) for budget, each in qualities.items())
    ladder.save(tmp_path / "budcache.ladder.json")
    found = comparison()
    (kept,) = promises.kept(found, "budcache.ladder.json", tmp_path)
    assert (kept.budget, kept.promised, kept.on) == (3, "25.0 ± 1.5 dB", "4 samples that chose it")
    summed = found.entry("budcache", 3).summed(found.measures[0])
    assert kept.measured == f"{summed.mean:.1f} ± {summed.error:.1f} dB"
    apart, off = summed.mean - 25.04, np.hypot(1.5, summed.error)
    assert (kept.apart, kept.agrees) == (f"{apart:+.1f} ± {off:.1f} dB".replace("-", "−"), abs(apart) <= 2 * off)
    words = page(found, tmp_path)
    assert kept.promised in words and kept.apart in words
    assert "the file&#39;s estimate" in words and ">promised<" not in words
    chosen_by = "chosen by the samples of the file&#39;s estimate"
    assert f"The policies were also {chosen_by}, so on new prompts expect a little less." in words
    assert kept.moving == {}, "pictures have no steadiness"
    assert promises.kept(found, "gone.json", tmp_path) == promises.kept(found, None, tmp_path) == []
    fitted = ladder[3].model_copy(update={"quality": qualities[3].model_copy(update={"used_to_fit": True})})
    Ladder.of([fitted]).save(tmp_path / "few.ladder.json")
    (kept,) = promises.kept(found, "few.ladder.json", tmp_path)
    assert (kept.promised, kept.on) == ("less than 25.0 dB", "4 samples that it was fitted on")
    assert kept.agrees is None and "±" not in kept.apart, "how those scatter says nothing of others"
    held_out = ladder[3].model_copy(update={"quality": Quality(psnr=10.0, psnr_error=0.1, samples=4)})
    Ladder.of([held_out]).save(tmp_path / "budcache.ladder.json")
    (kept,) = promises.kept(found, "budcache.ladder.json", tmp_path)
    assert kept.agrees is False and promises.caution([kept]) == ""
    assert ">promised<" in page(found, tmp_path) and "more than two standard errors" in page(found, tmp_path)


def test_a_page_of_videos_tells_their_steadiness_beside_their_psnr(tmp_path):
    ladder = Ladder.of([Policy(mask=Mask.uniform(STEPS, 3), quality=Quality(psnr=25.0, samples=4))])
    ladder.save(tmp_path / "budcache.ladder.json")
    found = comparison()
    entries = [
        one.model_copy(update={"values": {**one.values, "steadiness": (31.5, 32.5, 36.5)}}) for one in found.entries
    ]
    measures = (found.measures[0], Measure.of(METRICS["steadiness"]))
    found = found.model_copy(update={"entries": tuple(entries), "measures": measures})
    (kept,) = promises.kept(found, "budcache.ladder.json", tmp_path)
    assert kept.moving == {"Steadiness": "33.5 ± 1.5 dB"}
    table = per_prompt(found, 3)
    assert table.moving == ["Steadiness, budcache"]
    assert {row.number: row.moving for row in table.rows} == {0: ["31.50"], 1: ["32.50"], 2: ["36.50"]}
    assert "33.5 ± 1.5 dB" in page(found, tmp_path) and "Steadiness, budcache" in page(found, tmp_path)


def test_dots_tell_the_calls_of_every_sample():
    rows = {row.entry.method: row for row in promises.spreads(comparison(), 3)}
    assert (rows["budcache"].calls.text, rows["teacache"].calls.text) == ("3", "3 to 5")
    assert rows["budcache"].calls.path.count("M") == 1
    assert rows["teacache"].calls.path.count("M") == 3
    assert rows["budcache"].calls.target == rows["budcache"].calls.low


def test_bars_end_at_the_full_run():
    found = comparison()
    entries = [
        entry.model_copy(
            update={
                "full_seconds": (2.0,) * 25,
                "full_calls": (STEPS,) * 25,
                "timed_seconds": (0.8,) * 25,
                "timed_calls": (entry.budget,) * 25,
            }
        )
        for entry in found.entries
    ]
    rows = {row.entry.method: row for row in promises.spreads(found.model_copy(update={"entries": tuple(entries)}), 3)}
    assert rows["budcache"].calls.high == 100 * 3 / STEPS
    assert (rows["budcache"].times.high, rows["budcache"].times.text) == (40.0, "40 %")
