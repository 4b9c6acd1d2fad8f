"""What a real comparison holds, and its file."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from comparing import BUDGETS, METHODS
from PIL import Image
from rich.console import Console

from budcache import Ladder, Mask, PolicyError
from budcache.comparison import Comparison, Measure, text, write_csv
from budcache.comparison.table import cells
from budcache.metrics import metric

pytestmark = pytest.mark.xdist_group("compare command")  # all look at one comparison, which takes a while


@pytest.fixture(scope="module")
def found(compared):
    return Comparison.load(compared[0] / "comparison.json")


def picture(folder, name, number):
    return np.asarray(Image.open(folder / "pictures" / name / f"{number:03d}.png"), np.float32) / 255


def test_everything_asked_for_took_part(found):
    assert found.left_out == ()
    assert list(found.methods) == METHODS
    assert {(entry.method, entry.budget) for entry in found.entries} == {
        ("full", 6),
        *((name, budget) for name in METHODS for budget in BUDGETS),
    }
    assert found.prompts == ("a cat", "red <b>")
    assert (found.calibration, found.threads, found.device, found.dtype) == (4, 1, "cpu", "float32")
    assert found.history


def test_policies_make_the_calls_that_were_asked_for(found, compared):
    for name in ("fewer-steps", "uniform", "budcache-plain", "budcache"):
        for budget in BUDGETS:
            assert found.entry(name, budget).calls == (budget,) * 2
    ladder = Ladder.load(compared[0] / "budcache.ladder.json")
    assert found.entry("budcache", 3).masks == (ladder[3].mask,) * 2
    assert found.entry("uniform", 3).usual_mask == Mask.uniform(6, 3)
    assert found.full.calls == (6, 6)
    assert found.entry("teacache", 3).knob.startswith("threshold ")
    assert [found.entry(name, 3).learned_on for name in METHODS] == [None, None, 4, 4, 4]
    for entry in found.entries:
        assert entry.calls == tuple(mask.budget for mask in entry.masks)
        assert min(entry.seconds) > 0


def test_values_are_those_of_the_kept_pictures(found, compared):
    """But for the 256 levels that a picture has."""
    for entry in found.entries[1:]:
        for number, value in enumerate(entry.values["ssim"]):
            drawn, full = (picture(compared[0], name, number) for name in (f"{entry.method}-{entry.budget}", "full-6"))
            assert metric("ssim")(drawn, full) == pytest.approx(value, abs=2e-3)
    assert found.full.values == {}


def test_a_comparison_comes_back_from_its_file(found, tmp_path):
    assert Comparison.load(found.save(tmp_path / "twin.json")) == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 7}, "version 7"),
        ({"version": 1}, "version 1, but this budcache reads versions 2, 3 and 4"),
        ({"kind": "ladder"}, "is not a comparison"),
        ({"prompts": ["one"]}, "2 samples, but there are 1 prompts"),
        ({"entries": []}, "entries"),
        ({"nonsense": 1}, "unknown field 'nonsense'"),
    ],
)
def test_a_file_that_cannot_be_is_refused(found, change, message, tmp_path):
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(found.model_dump(mode="json") | change))
    with pytest.raises(PolicyError, match=message):
        Comparison.load(file)


def test_an_entry_must_fit_together(found):
    entry = found.entries[1]
    with pytest.raises(PolicyError, match="calls of 2 samples but seconds of 1"):
        type(entry).model_validate(entry.model_dump() | {"seconds": [1.0]})
    with pytest.raises(PolicyError, match="2 times and 1 calls of full runs"):
        type(entry).model_validate(entry.model_dump() | {"full_calls": [6]})
    with pytest.raises(PolicyError, match="timed runs that are no pairs"):
        type(entry).model_validate(entry.model_dump() | {"timed_seconds": [0.1], "timed_calls": [2]})
    with pytest.raises(PolicyError, match="call-equivalents of 1 samples"):
        type(entry).model_validate(entry.model_dump() | {"equivalents": [2.0]})
    with pytest.raises(PolicyError, match="twice at the same budget"):
        Comparison.model_validate(found.model_dump() | {"entries": [*found.entries, entry]})
    with pytest.raises(PolicyError, match="the full run is missing"):
        Comparison.model_validate(found.model_dump() | {"entries": found.entries[1:]})


def test_the_table_has_every_number_and_marks_the_best(found):
    console = Console(width=200, record=True, force_terminal=True, color_system="standard", file=io.StringIO())
    console.print(text(found))
    plain = console.export_text(clear=False, styles=False)
    styled = console.export_text(styles=True)
    for entry in found.entries:
        (line, *_) = [line for line in plain.splitlines() if line.startswith(entry.title)]
        assert len(line.split()) >= 6
    for budget in found.budgets:
        for measure in found.measures:
            means = [entry.summed(measure).mean for entry in found.within(budget)]
            best = measure.written(max(means))
            assert f"\x1b[1m{best}\x1b[0m" in styled


def test_a_file_or_pipe_which_has_no_bold_letters_marks_the_best_as_well(found):
    lines = printed(found, 200).splitlines()
    for measure in found.measures:
        best = max(found.within(3), key=lambda entry: entry.summed(measure).mean)
        summed = best.summed(measure)
        assert any(f"{measure.written(summed.mean)}±{measure.written(summed.error)}^" in line for line in lines)
    assert any("^ the best at its budget" in line for line in lines)
    alone = [entry for entry in found.entries if entry.method in ("full", "budcache")]  # nobody to be better than
    assert "^" not in printed(found.model_copy(update={"entries": tuple(alone)}))
    assert not any("bold" in line for line in lines)


def test_the_tail_stands_in_the_table_where_there_is_room(found):
    longest = "First Block Cache (diffusers)"
    wide = [
        entry.model_copy(update={"title": longest, "calls": (2, 18)}) if entry.method == "teacache" else entry
        for entry in found.entries
    ]
    changed = found.model_copy(update={"entries": tuple(wide)})
    (measure, *_), entry = found.measures, found.entry("budcache", 3)
    tail = measure.written(entry.summed(measure).tail)
    for width, has_tail in ((115, True), (92, False)):
        plain = printed(changed, width)
        assert ("PSNR p5" in plain.splitlines()[0]) == has_tail
        assert (tail in plain) == has_tail
        assert ("p5: the 5th percentile" in " ".join(plain.split())) == has_tail
        assert longest in plain
        assert f"{measure.written(entry.summed(measure).mean)}±{measure.written(entry.summed(measure).error)}" in plain
        assert "…" not in plain
        assert max(map(len, plain.splitlines())) <= width
    lpips = Measure(name="lpips", title="LPIPS", digits=4, higher=False)
    more = [
        each.model_copy(update={"values": {**each.values, "lpips": (0.1, 0.2)}}) if each.values else each
        for each in changed.entries
    ]
    three = printed(changed.model_copy(update={"entries": tuple(more), "measures": (*found.measures, lpips)}), 103)
    assert "PSNR p5" not in three
    assert "0.1500±0.0500" in three
    assert longest in three
    assert "…" not in three


def test_every_mark_is_explained_in_eighty_columns(found):
    solver = [
        entry.model_copy(update={"method": "ipndm", "title": "iPNDM(2M)"}) if entry.method == "teacache" else entry
        for entry in found.entries
    ]
    for comparison, has_solver in ((found, False), (found.model_copy(update={"entries": tuple(solver)}), True)):
        plain = printed(comparison, 80)
        assert all(sum(line.startswith(mark) for line in plain.splitlines()) == 1 for mark in ("± ", "call-eq.: "))
        assert ("iPNDM(2M): fewer steps of another solver" in plain) == has_solver
        assert max(map(len, plain.splitlines())) <= 80


def test_metrics_that_do_not_fit_are_named_below_rather_than_cut(found):
    """A video has four metrics by default."""
    moving = tuple(Measure(name=name, title=name.title(), digits=2) for name in ("worst-frame", "steadiness"))
    entries = [
        each.model_copy(update={"values": {**each.values, **{m.name: (31.25, 33.75) for m in moving}}})
        if each.values
        else each
        for each in found.entries
    ]
    update = {"entries": tuple(entries), "measures": (*found.measures, *moving)}
    four = printed(found.model_copy(update=update), 80)
    assert "…" not in four
    assert all(entry.title in four for entry in found.entries)
    assert "Steadiness, which the page and the files have" in " ".join(four.split())
    assert "no room" not in printed(found.model_copy(update=update), 200)


def printed(comparison, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(text(comparison))
    return console.file.getvalue()


def test_the_sheet_has_a_line_for_each(found, tmp_path):
    pairs = {"full_seconds": (1.0,) * 20, "full_calls": (6,) * 20, "timed_seconds": (0.5,) * 20}
    entries = [
        e.model_copy(update={**pairs, "timed_calls": (3,) * 20}) if (e.method, e.budget) == ("budcache", 3) else e
        for e in found.entries
    ]
    found = found.model_copy(update={"entries": tuple(entries)})
    with write_csv(found, tmp_path / "sheet.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], int(row["budget"])) for row in rows] == [(e.method, e.budget) for e in found.entries]
    for row, entry in zip(rows, found.entries, strict=True):
        assert float(row["calls"]) == pytest.approx(entry.mean_calls)
        assert (row["speedup"] == "") == (not entry.timed_seconds and entry.method != "full")
        if entry.timed_seconds:
            assert float(row["speedup_min"]) <= float(row["speedup"]) == 2 <= float(row["speedup_max"])
        assert float(row["call_equivalents"]) >= float(row["calls"]) - 1e-6
        if entry.values:
            values = entry.quality("psnr")
            assert float(row["psnr"]) == pytest.approx(np.mean(values))
            assert float(row["psnr_se"]) == pytest.approx(np.std(values, ddof=1) / 2**0.5)
            assert float(row["psnr_worst"]) == min(values)
        else:
            assert row["psnr"] == row["psnr_se"] == ""


def test_who_takes_more_calls_than_agreed_does_not_compete(found):
    entry = found.entry("budcache", 3)
    greedy = entry.model_copy(
        update={
            "method": "greedy",
            "title": "greedy",
            "calls": (6, 6),
            "values": {"psnr": (99.0, 99.0), "ssim": (1.0, 1.0)},
        }
    )
    among = found.model_copy(update={"entries": (*found.entries, greedy)})
    assert greedy in among.at(3)
    assert greedy not in among.within(3)
    assert [cell.rank for cell in cells(among, greedy)] == [0] * 5
    assert cells(among, entry) == cells(found, entry)
