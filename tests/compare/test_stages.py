"""Draw, measure, show: each goes on from what the folder holds, and does nothing twice."""

from __future__ import annotations

import json
import shutil
from functools import partial

import numpy as np
import pytest
import torch
from zoo import entry

from budcache import BudcacheWarning, Ladder, Mask, PipelineError, Policy, SearchError
from budcache import compare as with_timing
from budcache.baselines import caching, trials
from budcache.baselines.l2p import L2P
from budcache.comparison import Comparison, clocking, headline, measure, show
from budcache.comparison.kept import picture
from budcache.comparison.planning import expected
from budcache.comparison.preparing import Preparation
from budcache.comparison.settings import Settings
from budcache.comparison.table import notes
from budcache.comparison.timing import LEAST_PAIRS, MOST_PAIRS
from budcache.errors import BudcacheError, FileError, JournalError, PolicyError
from budcache.events import EntryDone, Planned, Progress
from budcache.metrics.pixels import Psnr, Ssim
from budcache.report.view import facts

compare = partial(with_timing, timed=())  # timing has tests of its own
STEPS, PROMPTS = 5, ["a cat", "a dog"]
ONE = Ladder.of([Policy(mask=Mask.full(3))])


@pytest.fixture(scope="module")
def flux():
    kind = entry("flux")
    call = {name: value for name, value in kind.kwargs().items() if name not in ("prompt", "generator")}
    pipe = kind.build()
    pipe.calls = 0

    def count(*_):
        pipe.calls += 1

    pipe.transformer.register_forward_hook(count)
    return pipe, call


@pytest.fixture
def run(flux, tmp_path):
    """A comparison in one folder, again and again; returns it and the model calls that it made."""
    pipe, call = flux

    def run(*methods, budgets=(2, 3), metrics=("psnr",), **more):
        before = pipe.calls
        given = {"prompts": PROMPTS, "folder": tmp_path, "call": call, **more}
        found = compare(pipe, steps=STEPS, budgets=budgets, methods=methods, metrics=metrics, **given)
        return found, pipe.calls - before

    return run


@pytest.fixture
def measured(monkeypatch):
    """How many samples each metric has looked at."""
    counts = {"psnr": 0, "ssim": 0}

    def counting(kind):
        usual = kind.frame

        def frame(self, *args):
            counts[self.name] += 1
            return usual(self, *args)

        monkeypatch.setattr(kind, "frame", frame)

    counting(Psnr)
    counting(Ssim)
    return counts


def after(count):
    """A watcher that interrupts, as Ctrl-C does, once so many entries are finished."""
    seen = []

    def watch(event):
        seen.append(event)
        if sum(isinstance(event, EntryDone) for event in seen) == count:
            raise KeyboardInterrupt

    return watch


def test_another_metric_draws_nothing(run, measured):
    first, calls = run("uniform")
    assert calls > 0
    assert measured == {"psnr": 4, "ssim": 0}
    both, calls = run("uniform", metrics=("psnr", "ssim"))
    assert calls == 0, "it drew again"
    assert measured == {"psnr": 4, "ssim": 4}
    for before, now in zip(first.entries, both.entries, strict=True):
        assert now.model_copy(update={"values": before.values}) == before
    assert set(both.entry("uniform", 2).values) == {"psnr", "ssim"}
    fewer, calls = run("uniform")
    assert (fewer, calls) == (first, 0), "what was asked for before is there still"


def test_another_method_or_budget_measures_only_what_is_new(run, measured):
    first, _ = run("uniform", budgets=[2])
    measured["psnr"] = 0
    second, calls = run("uniform", "fewer-steps", budgets=[2])
    assert (measured["psnr"], calls) == (2, STEPS + 2 * 2), "a full run to warm up, and two samples"
    third, calls = run("uniform", "fewer-steps", budgets=[2, 3])
    assert (measured["psnr"], calls) == (6, STEPS + 2 * 2 * 3)
    assert third.entry("uniform", 2) == second.entry("uniform", 2) == first.entry("uniform", 2)


def test_interrupted_while_drawing_it_goes_on_and_can_be_shown(run, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run("uniform", "fewer-steps", watch=after(3))
    half = show(tmp_path)
    assert [(e.method, e.budget) for e in half.entries] == [("full", STEPS), ("uniform", 2), ("uniform", 3)]
    assert half.entry("uniform", 2).values == {}, "nothing was measured yet"
    assert (tmp_path / "comparison.html").exists()
    events = []
    whole, _ = run("uniform", "fewer-steps", watch=events.append)
    done = [(event.method, event.kept) for event in events if isinstance(event, EntryDone)]
    assert done == [("full", True), ("uniform", True), ("uniform", True), *[("fewer-steps", False)] * 2]
    for before in half.entries:
        assert whole.entry(before.method, before.budget).seconds == before.seconds
    assert all(entry.values for entry in whole.entries[1:])


def test_interrupted_while_measuring_it_goes_on(run, measured, monkeypatch):
    usual, met = Ssim.frame, []

    def frame(self, *args):
        met.append(1)
        if len(met) == 3:  # in the middle of the second entry
            raise KeyboardInterrupt
        return usual(self, *args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Ssim, "frame", frame)
        run("uniform", metrics=["ssim"])
    measured["ssim"] = 0
    found, calls = run("uniform", metrics=["ssim"])
    assert calls == 0
    assert measured["ssim"] == 2, "the first entry was measured already"
    assert len(found.entry("uniform", 3).values["ssim"]) == 2


def test_measuring_and_showing_need_no_pipeline(run, tmp_path):
    both, _ = run("uniform", metrics=["psnr", "ssim"], folder=tmp_path / "both")
    run("uniform", folder=tmp_path / "one")
    measure(tmp_path / "one", ["ssim", "psnr"])
    found = show(tmp_path / "one")
    assert [measure.name for measure in found.measures] == ["psnr", "ssim"]
    assert [entry.values for entry in found.entries] == [entry.values for entry in both.entries]
    assert Comparison.load(tmp_path / "one" / "comparison.json") == found
    assert "ssim_se" in (tmp_path / "one" / "comparison.csv").read_text()


def test_what_is_kept_is_what_is_measured(run, tmp_path):
    """In half precision, and of all methods: nothing depends on when a metric was asked for."""
    found, _ = run("uniform")
    for number, value in enumerate(found.entry("uniform", 3).values["psnr"]):
        folders = (tmp_path / "samples" / name for name in ("uniform-3", "full-5"))
        sample, full = (np.load(folder / f"{number:03d}.npy") for folder in folders)
        assert sample.dtype == np.float16
        assert Psnr()(sample.astype(np.float32), full.astype(np.float32)) == value


def test_a_lost_sample_is_said_when_it_is_needed(run, flux, tmp_path):
    found, _ = run("uniform")
    (tmp_path / "samples" / "uniform-2" / "001.npy").unlink()
    again, _ = run("uniform")
    assert again == found, "all is measured already"
    for methods in (["uniform"], ["uniform", "fewer-steps"]):
        before = flux[0].calls
        with pytest.raises(FileError, match=r"001\.npy is missing or damaged.*leave the new metrics out"):
            run(*methods, metrics=["ssim"])
        assert flux[0].calls == before, "it is said before the work"


def test_without_its_samples_a_folder_goes_on(run, tmp_path):
    """As the documentation says: what is measured is shown, what is new is drawn, beside the full run."""
    whole, _ = run("uniform", "fewer-steps", folder=tmp_path / "whole")
    first, _ = run("uniform")
    shutil.rmtree(tmp_path / "samples")
    assert run("uniform") == (first, 0)
    found, calls = run("uniform", "fewer-steps")
    assert calls == (2 + 1) * STEPS + 2 * (2 + 3), "the full run is drawn again, and one more warms up"
    assert found.entry("uniform", 2) == first.entry("uniform", 2)
    assert [entry.values for entry in found.entries] == [entry.values for entry in whole.entries]
    assert sorted(path.name for path in (tmp_path / "samples").iterdir()) == [
        "fewer-steps-2",
        "fewer-steps-3",
        "full-5",
    ]


def test_a_new_metric_needs_the_samples_of_what_is_asked_for_only(run, tmp_path, measured):
    run("uniform", budgets=[2, 3])
    run("fewer-steps", budgets=[2])
    for name in ("uniform-2", "uniform-3"):
        shutil.rmtree(tmp_path / "samples" / name)
    found, calls = run("fewer-steps", budgets=[2], metrics=["psnr", "ssim"])
    assert (calls, measured["ssim"]) == (0, 2)
    assert found.entry("fewer-steps", 2).values.keys() == {"psnr", "ssim"}


def test_measuring_looks_at_what_was_last_asked_for(run, tmp_path, measured):
    run("uniform", budgets=[2, 3])
    run("fewer-steps", budgets=[2])
    measure(tmp_path, ["ssim"])
    assert measured["ssim"] == 2
    run("uniform", budgets=[2, 3], metrics=["ssim"])
    assert measured["ssim"] == 6


def test_a_full_run_that_is_lost_is_drawn_again_for_a_new_metric(run, tmp_path):
    whole, _ = run("uniform", metrics=["psnr", "ssim"], folder=tmp_path / "whole")
    run("uniform")
    (tmp_path / "samples" / "full-5" / "000.npy").unlink()
    found, calls = run("uniform", metrics=["psnr", "ssim"])
    assert calls == (1 + 2) * STEPS
    assert [entry.values for entry in found.entries] == [entry.values for entry in whole.entries]


def test_a_value_that_failed_is_not_tried_again_without_samples(run, tmp_path, monkeypatch):
    monkeypatch.setattr(Psnr, "frame", lambda *_: float("nan"))
    first, _ = run("uniform", budgets=[2])
    shutil.rmtree(tmp_path / "samples")
    assert run("uniform", budgets=[2]) == (first, 0)


def test_a_folder_of_the_first_format_is_refused(run, tmp_path):
    old = {"record": 1, "comparison": {"format": 1, "metrics": ["psnr"], "steps": STEPS}}
    (tmp_path / "comparison.jsonl").write_text(json.dumps(old) + "\n")
    for attempt in (lambda: run("uniform"), lambda: show(tmp_path), lambda: measure(tmp_path, ["psnr"])):
        with pytest.raises(FileError, match=r"comparison of format 1.*Choose another place"):
            attempt()
    assert not (tmp_path / "drawn.jsonl").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no comparison in "),
        ("", "is not the record of a comparison"),
        ("something else\n", "is not the record of a comparison"),
        ('{"record": 1, "comparison": {"format": 9}}\n', "is not the record of a comparison"),
        ('{"record": 1, "comparison": {"format": 2}}\n', "no full run yet"),
        ('{"record": 1, "comparison": {"format": 2}}\n{"entry": {}}\n', "has a line that cannot be used"),
        ('{"record": 1, "comparison": {"format": 2}}\n{"entry": {"half', "no full run yet"),
    ],
)
def test_a_folder_that_cannot_be_shown_is_refused(content, message, tmp_path):
    if content is not None:
        (tmp_path / "drawn.jsonl").write_text(content)
    with pytest.raises(FileError, match=message):
        show(tmp_path)


def test_another_policy_under_the_same_name_is_never_mixed_up_with_the_first(run, tmp_path):
    """Neither its values nor its pictures, even if it was interrupted while drawing over them."""

    def policy(*steps):
        return {"budcache": Ladder.of([Policy(mask=Mask.of(STEPS, steps))])}

    one, other = policy(0, 1), policy(0, 4)
    first, _ = run(budgets=[2], policies=one)
    drawn = []

    def stop(event):
        drawn.append(isinstance(event, Progress) and event.note.startswith("drawing"))
        if any(drawn):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(budgets=[2], policies=other, watch=stop)
    again, calls = run(budgets=[2], policies=one)
    assert calls > 0, "its pictures were partly drawn over, so it has to be drawn again"
    assert again.entry("budcache", 2).values == first.entry("budcache", 2).values
    second, _ = run(budgets=[2], policies=other)
    assert second.entry("budcache", 2).values != first.entry("budcache", 2).values
    third, _ = run(budgets=[2, 3], policies=other)
    assert [(out.method, out.budgets) for out in third.left_out] == [("budcache", (3,))]
    fourth, _ = run("uniform", budgets=[2], policies=policy(0, 1, 2))
    assert list(fourth.methods) == ["uniform"], "the ladder has no rung of 2, and the old one's is not shown for it"


def test_a_policy_under_a_name_of_ones_own_is_put_forward(run, tmp_path):
    mine = {"mine": Ladder.of([Policy(mask=Mask.of(STEPS, [0, 1]))])}
    found, _ = run("uniform", budgets=[2], policies=mine)
    assert (found.ours, found.given, found.policies) == ("mine", ["mine"], ("mine",))
    assert headline(found).startswith("With 2 instead of 5 model calls") and " mine stays at PSNR " in headline(found)
    assert show(tmp_path) == found == Comparison.load(tmp_path / "comparison.json")
    page = (tmp_path / "comparison.html").read_text()
    assert "mine ahead by" in page
    assert "budcache.applied" not in page, "there is no file of that name"
    # Whatever is searched by budcache, or given in its place, comes first.
    both, _ = run(
        "uniform", budgets=[2], policies={**mine, "budcache": Ladder.of([Policy(mask=Mask.of(STEPS, [0, 3]))])}
    )
    assert (both.ours, both.given) == ("budcache", ["mine", "budcache"])


def test_a_comparison_from_before_policies_were_named_knows_those_of_the_command_line(run):
    files = {"policy:l.json": Ladder.of([Policy(mask=Mask.of(STEPS, [0, 1]))])}
    found, _ = run("uniform", budgets=[2], policies=files)
    old = {name: value for name, value in found.model_dump(mode="json").items() if name != "policies"}
    assert Comparison.model_validate(old).ours == found.ours == "policy:l.json"


def test_another_budget_leaves_the_rungs_that_were_drawn_as_they_are(run, tmp_path):
    texts = ["a house", "a tree", "a boat"]
    first, _ = run("budcache-plain", budgets=[3], calibration=texts)
    file = tmp_path / "budcache-plain.ladder.json"
    (rung,) = Ladder.load(file)
    both, _ = run("budcache-plain", budgets=[2, 3], calibration=texts)
    ladder = Ladder.load(file)
    assert ladder.budgets == (2, 3)
    assert ladder[3] == rung
    assert both.entry("budcache-plain", 3) == first.entry("budcache-plain", 3)
    assert both.entry("budcache-plain", 2).usual_mask == ladder[2].mask


TEXTS = ["a house", "a tree", "a boat"]


@pytest.fixture(scope="module")
def rung(flux, tmp_path_factory):
    """What our search finds at 3 calls."""
    pipe, call = flux
    folder = tmp_path_factory.mktemp("searched")
    asked = {"methods": ["budcache-plain"], "metrics": ["psnr"], "prompts": PROMPTS, "calibration": TEXTS}
    compare(pipe, steps=STEPS, budgets=[3], folder=folder, call=call, **asked)
    return Ladder.load(folder / "budcache-plain.ladder.json")[3]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": STEPS + 1}, "steps is 6 in one and 5 in the other"),
        ({"model": "another"}, "model is 'another' in one and"),
        ({"weights": "0" * 16}, "weights is '0000000000000000' in one and"),
        ({"height": 48}, "height is 48 in one and"),
        ({"prompts_hash": "f" * 16}, "it was made on other prompts"),
        ({"seed": 5}, "seed is 5 in one and 0 in the other"),
        (None, "it was made on other prompts"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_a_ladder_of_another_search_is_not_taken(change, says, rung, run, tmp_path):
    other = Mask.of((change or {}).get("steps", STEPS), [0, 1, 2])
    assert other.computed != rung.mask.computed
    facts = {name: value for name, value in (change or {}).items() if name != "steps"}
    facts |= {"levels": ()} if "steps" in (change or {}) else {}  # they belong to the steps
    origin = rung.origin.model_copy(update=facts) if change is not None else None
    foreign, file = Policy(mask=other, origin=origin), tmp_path / "budcache-plain.ladder.json"
    Ladder.of([foreign]).save(file)
    (tmp_path / "budcache-plain.ladder.other.json").write_text("mine")
    (tmp_path / "budcache-plain.ledger.jsonl").write_text("its ledger")
    with pytest.warns(BudcacheWarning, match=f"is no ladder of this comparison's search: {says}.*the search is made"):
        found, _ = run("budcache-plain", budgets=[3], calibration=TEXTS)
    assert found.entry("budcache-plain", 3).usual_mask == rung.mask == Ladder.load(file)[3].mask
    assert Ladder.load(tmp_path / "budcache-plain.ladder.other2.json")[3] == foreign, "nobody's search is lost"
    assert (tmp_path / "budcache-plain.ladder.other.json").read_text() == "mine"
    assert (tmp_path / "budcache-plain.ledger.other.jsonl").read_text() == "its ledger"


def test_a_ladder_of_the_same_search_is_taken(rung, run, tmp_path, recwarn):
    Ladder.of([rung]).save(tmp_path / "budcache-plain.ladder.json")
    run("budcache-plain", budgets=[3], calibration=TEXTS)
    assert not (tmp_path / "search.ledger.jsonl").exists()
    assert not [each for each in recwarn if issubclass(each.category, BudcacheWarning)]


def without_line(file, holding):
    """Remove a line of a journal by hand."""
    lines = file.read_text().splitlines(keepends=True)
    left = [line for line in lines if holding not in line]
    assert len(left) == len(lines) - 1
    file.write_text("".join(left))


def test_a_line_removed_by_hand_moves_no_values_to_another_method(run, tmp_path):
    found, _ = run("fewer-steps", "uniform", budgets=[2, 3])
    without_line(tmp_path / "drawn.jsonl", '"method": "fewer-steps", "title": "fewer steps", "budget": 2')
    shown = show(tmp_path)
    assert shown.entry("fewer-steps", 2) is None
    assert [entry.values for entry in shown.entries] == [
        entry.values for entry in found.entries if (entry.method, entry.budget) != ("fewer-steps", 2)
    ]
    again, _ = run("fewer-steps", "uniform", budgets=[2, 3])
    assert [entry.values for entry in again.entries] == [entry.values for entry in found.entries]


def test_values_under_the_id_of_another_method_are_refused(run, tmp_path):
    run("uniform", budgets=[2])
    file = tmp_path / "measured.jsonl"
    for old, new in (('"method": "uniform"', '"method": "fewer-steps"'), ('"budget": 2', '"budget": 3')):
        right = file.read_text()
        file.write_text(right.replace(old, new))
        with pytest.raises(FileError, match=r"measured\.jsonl has a line that cannot be used.*Remove the line"):
            show(tmp_path)
        file.write_text(right)


def as_before_ids(folder):
    """A folder as it was written when values were tied to the number of a drawing's line."""
    lines = [json.loads(line) for line in (folder / "drawn.jsonl").read_text().splitlines()]
    numbers = {line.pop("id"): number for number, line in enumerate(lines) if "id" in line}
    (folder / "drawn.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = [json.loads(line) for line in (folder / "measured.jsonl").read_text().splitlines()]
    rows = [{"line": numbers[row.pop("id")], **row} if "id" in row else row for row in rows]
    (folder / "measured.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_folder_without_ids_is_still_read(run, measured, tmp_path):
    found, _ = run("fewer-steps", "uniform")
    as_before_ids(tmp_path)
    assert show(tmp_path) == found
    measure(tmp_path, ["ssim"])  # new values have an id of the old drawing
    without_line(tmp_path / "drawn.jsonl", '"method": "fewer-steps", "title": "fewer steps", "budget": 2')
    shown = show(tmp_path)
    assert all(set(entry.values) == {"ssim"} for entry in shown.entries[1:]), "which line had which psnr is not known"
    measured["psnr"] = 0
    again, _ = run("fewer-steps", "uniform")
    assert [entry.values for entry in again.entries] == [entry.values for entry in found.entries]
    assert measured["psnr"] == 8


def strictly(text):
    """JSON as everybody else reads it, who knows no NaN."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_value_that_is_no_number_is_left_out_with_a_sentence(value, run, monkeypatch, tmp_path):
    usual, met = Psnr.frame, []

    def frame(self, *args):
        met.append(1)
        return value if len(met) == 2 else usual(self, *args)  # the second sample of the first entry

    with monkeypatch.context() as patch:
        patch.setattr(Psnr, "frame", frame)
        found, _ = run("uniform", metrics=["psnr", "ssim"])
    says = f"PSNR of uniform mask at 2 calls is left out: sample 1 measures {value}. Look at the picture, or "
    says += "leave psnr out."
    assert found.warnings == (says,)
    assert set(found.entry("uniform", 2).values) == {"ssim"}, "the rest of it is as good as ever"
    assert set(found.entry("uniform", 3).values) == {"psnr", "ssim"}
    assert show(tmp_path) == found == Comparison.load(tmp_path / "comparison.json")
    assert says in (tmp_path / "comparison.html").read_text()
    lines = strictly((tmp_path / "measured.jsonl").read_text())
    again, calls = run("uniform", metrics=["psnr", "ssim"])
    assert (again.warnings, calls) == ((), 0), "it is tried again, on the samples that are there"
    assert len(strictly((tmp_path / "measured.jsonl").read_text())) == len(lines) + 1


def test_a_value_that_is_no_number_again_is_written_once(run, monkeypatch, tmp_path):
    monkeypatch.setattr(Psnr, "frame", lambda *_: float("nan"))
    first, _ = run("uniform", budgets=[2])
    size = (tmp_path / "measured.jsonl").stat().st_size
    assert run("uniform", budgets=[2])[0] == first
    assert (tmp_path / "measured.jsonl").stat().st_size == size


def test_a_folder_that_holds_nan_as_a_value_can_be_shown(run, tmp_path):
    found, _ = run("uniform", budgets=[2])
    file, (one, other) = tmp_path / "measured.jsonl", found.entry("uniform", 2).values["psnr"]
    file.write_text(file.read_text().replace(f"[{one}, {other}]", f"[{one}, NaN]"))
    shown = show(tmp_path)
    assert "sample 1 measures nan" in shown.warnings[0]
    assert shown.entry("uniform", 2).values == {}
    assert run("uniform", budgets=[2])[0] == found


@pytest.fixture
def overflowing(flux, monkeypatch):
    """The pipeline overflows in runs of a few calls: its pictures are not finite."""
    pipe, _ = flux
    usual = pipe.image_processor.postprocess

    def switch(*calls):
        before = pipe.calls

        def postprocess(*args, **kwargs):
            nonlocal before
            made, before = pipe.calls - before, pipe.calls
            pictures = usual(*args, **kwargs)
            return pictures * np.nan if made in calls else pictures

        monkeypatch.setattr(pipe.image_processor, "postprocess", postprocess)

    return switch


def test_pictures_that_are_not_finite_leave_a_method_out(run, overflowing, tmp_path):
    overflowing(2)
    found, _ = run("uniform", metrics=["psnr", "ssim"])
    (absent,) = found.left_out
    assert (absent.method, absent.budgets) == ("uniform", (2,))
    assert absent.reason.startswith("sample 0 has pixels that are not finite numbers")
    assert found.entry("uniform", 3).values.keys() == {"psnr", "ssim"}
    assert show(tmp_path) == found


def test_a_full_run_that_is_not_finite_ends_it(run, overflowing):
    overflowing(STEPS)
    with pytest.raises(PipelineError, match=r"sample 0 has pixels that are not finite numbers.*Check the number"):
        run("uniform")


def test_names_that_look_alike_have_pictures_of_their_own(tmp_path):
    names = ["policy:a b", "policy:a-b", "policy-a-b", "uniform"]
    assert len({picture(tmp_path, name, 3, 0) for name in names}) == 4
    assert picture(tmp_path, "uniform", 3, 7) == tmp_path / "pictures" / "uniform-3" / "007.png"


def test_whoever_watches_is_told_the_cost_and_the_way(run):
    events = []
    run("uniform", "fewer-steps", watch=events.append)
    (planned,) = [event for event in events if isinstance(event, Planned)]
    assert events[0] is planned
    assert [phase.name for phase in planned.phases] == ["full run", "uniform mask", "fewer steps", "measuring"]
    steps = [event for event in events if isinstance(event, Progress)]
    assert {event.job for event in steps} == {"compare"}
    shares = [event.done / event.total for event in steps if event.total]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert steps[-1].sample_calls == planned.sample_calls


def test_samples_may_start_from_pictures_and_bring_their_noise(tmp_path):
    kind = entry("flux-img2img")
    pipe, given = kind.build(), kind.kwargs()
    image, shared = given["image"], {name: given[name] for name in ("height", "width", "guidance_scale")}
    generator = torch.Generator().manual_seed(11)
    state = generator.get_state()
    samples = [
        {"prompt": "a cat", "image": image, "strength": 0.6, "generator": generator},
        {"prompt_embeds": None, "prompt": ["two dogs"], "image": image.rotate(90), "strength": 1.0},
    ]

    def run(*methods, **more):
        where = {"folder": tmp_path, "call": shared, "metrics": ["psnr"], **more}
        return compare(pipe, steps=STEPS, budgets=[2], samples=samples, methods=methods, **where)

    weights = ((1.0,), (1.2, -0.2))
    mine = {"policy:fitted": Ladder.of([Policy(mask=Mask.of(STEPS, [0, 3]), weights=weights)])}
    found = run("fewer-steps", "uniform", "magcache", policies=mine, calibration_samples=samples)
    assert found.left_out == ()
    assert found.prompts == ("a cat", "two dogs")
    assert found.seed is None
    assert found.full.calls == (3, 5), "strength 0.6 runs the last three of five steps"
    assert found.entry("uniform", 2).calls == (1, 2), "of steps 0 and 2 only the second is left"
    assert [len(mask) for mask in found.entry("uniform", 2).masks] == [3, 5]
    assert found.entry("fewer-steps", 2).calls == (2, 2), "with two steps, strength 0.6 leaves none out"
    assert all(value < 100 for value in found.entry("uniform", 2).values["psnr"])
    assert torch.equal(generator.get_state(), state), "the caller's generator is left as it was"
    # The same noise again, wherever it comes from.
    with torch.no_grad():
        call = {**shared, **samples[0], "generator": torch.Generator().manual_seed(11)}
        again = pipe(**call, num_inference_steps=STEPS, output_type="np").images[0]
    assert np.array_equal(np.load(tmp_path / "samples" / "full-5" / "000.npy"), again.astype(np.float16))


def test_modular_pipelines_can_be_compared_and_their_calls_are_counted(tmp_path):
    kind = entry("modular-flux-img2img")
    pipe, given = kind.build(), kind.kwargs()
    given.pop("generator", None)
    where = {"folder": tmp_path, "metrics": ["psnr"], "methods": ["uniform"], "progress": False}
    found = compare(pipe, steps=STEPS, budgets=[3], samples=[given, {**given, "strength": 1.0}], **where)
    assert found.full.calls == (3, 5), "strength 0.6 runs the last three of five steps"
    assert [len(mask) for mask in found.entry("uniform", 3).masks] == [3, 5]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"call": {"guidence_scale": 2.0}}, PipelineError, "takes no argument 'guidence_scale'.*guidance_scale"),
        ({"call": {"num_inference_steps": 9}}, PipelineError, r"num_inference_steps.*Give steps= instead"),
        ({"call": {"output_type": "pil"}}, PipelineError, r"output_type.*Leave it out"),
        ({"samples": [{"prompt": "a"}]}, SearchError, "prompts and samples were both given"),
        ({"prompts": [], "samples": [{"height": 32}], "metrics": ["clip-b"]}, SearchError, "looks at the prompt"),
        ({"metrics": ["pnsr"]}, SearchError, "no metric 'pnsr'. Did you mean psnr"),
        ({"methods": ["unifrom"]}, SearchError, "no method 'unifrom'. Did you mean uniform"),
        ({"policies": {"full": ONE}}, SearchError, "the full run's name"),
        ({"policies": {"teacache": ONE}}, SearchError, "a policy is called 'teacache', which is TeaCache's name"),
        ({"policies": {"TeaCache": ONE}}, SearchError, "a policy is called 'TeaCache', which is TeaCache's name"),
        ({"policies": {"uniform": ONE}}, SearchError, "a policy is called 'uniform', which is uniform mask's name"),
        ({"care": "best"}, SearchError, "there is no care 'best'. Use 'typical' or 'worst'"),
        ({"guidance_scale": 2.0}, SearchError, r"no option 'guidance_scale'.*call="),
    ],
)
def test_a_mistake_is_refused_before_any_work(change, kind, message, flux, tmp_path):
    pipe, _ = flux
    before, given = pipe.calls, {"prompts": ["a"], "methods": ["uniform"], "folder": tmp_path / "new"}
    with pytest.raises(kind, match=message):
        compare(pipe, steps=STEPS, budgets=[2], **(given | change))
    assert pipe.calls == before
    assert not (tmp_path / "new").exists()


def test_every_method_says_how_many_samples_it_was_really_learned_on(run):
    calibration = [f"prompt {number}" for number in range(6)]
    found, _ = run("lemica", "magcache", "l2p", budgets=[3], calibration=calibration, timed=[])
    assert {entry.method: entry.learned_on for entry in found.at(3)} == {"lemica": 4, "magcache": 6, "l2p": 6}


def test_l2p_is_judged_on_samples_that_it_has_not_seen_and_then_learned_on_all(run, tmp_path, monkeypatch):
    ran, calibrated = [], []
    usual = L2P.calibrated.__func__

    def learned(kind, full):
        calibrated.append(len(full.samples))
        return usual(kind, full)

    def noted(pipe, setting, steps):
        ran.append(setting.products)
        return caching(pipe, setting, steps)

    monkeypatch.setattr(trials, "caching", noted)
    monkeypatch.setattr(L2P, "calibrated", classmethod(learned))
    run("l2p", budgets=[3], calibration=[f"prompt {number}" for number in range(4)], timed=[])
    assert calibrated[0] == 4 and set(calibrated[1:]) == {3}
    (setting, _), *_ = Settings.load(tmp_path / "settings.json").find("l2p", 3).settings
    assert len(set(ran)) == 4
    assert setting.products not in ran, "learned on all"


def test_speed_is_measured_in_pairs_with_full_runs(run, brief):
    found, _ = run("uniform", "fewer-steps", budgets=[2], timed=["uniform"])
    entry = found.entry("uniform", 2)
    assert LEAST_PAIRS <= len(entry.timed_seconds) == len(entry.full_seconds) <= MOST_PAIRS
    assert set(entry.timed_calls) == {2} and set(entry.full_calls) == {STEPS}
    assert entry.speed.pairs == len(entry.timed_seconds)
    assert entry.speed.noisy or entry.speedup <= STEPS / 2
    assert entry.memory is None or entry.memory > 1 << 20
    other = found.entry("fewer-steps", 2)
    assert (other.timed_seconds, other.speed.text) == ((), "not timed")
    assert found.full.before_seconds > 0 and found.full.after_seconds > 0


@pytest.mark.slow
def test_rows_are_timed_four_at_a_time_beside_the_same_full_runs(run, brief):
    """All four of a group, each with as many pairs as it needed; the fifth has full runs of its own."""
    names = "uniform", "fewer-steps", "ipndm", "dpmpp", "unipc"
    found, _ = run(*names, budgets=[2], calibration=["a", "b"], timed=None)
    *four, alone = (found.entry(name, 2).full_seconds for name in names)
    least = min(map(len, four))
    assert least >= LEAST_PAIRS and len({each[:least] for each in four}) == 1
    assert alone[:least] != four[0][:least]


@pytest.mark.slow
def test_a_kill_while_timing_loses_the_times_of_one_group_at_most(run, brief, monkeypatch, tmp_path):
    names, times = ("uniform", "fewer-steps", "ipndm", "dpmpp", "unipc"), []
    usual = clocking.enough

    def enough(*args, **more):
        times.append(None)
        if len(times) == 2:
            raise KeyboardInterrupt
        return usual(*args, **more)

    monkeypatch.setattr(clocking, "enough", enough)
    with pytest.raises(KeyboardInterrupt):
        run(*names, budgets=[2], calibration=["a", "b"], timed=None)
    left, _ = run(*names, budgets=[2], calibration=["a", "b"], timed=[])
    assert [bool(left.entry(name, 2).timed_seconds) for name in names] == [True] * 4 + [False]
    found, _ = run(*names, budgets=[2], calibration=["a", "b"], timed=None)
    assert all(found.entry(name, 2).timed_seconds == left.entry(name, 2).timed_seconds for name in names[:4])
    assert found.entry("unipc", 2).timed_seconds


def test_what_was_drawn_untimed_is_timed_later_and_nothing_else_is_done_again(run, brief):
    before, _ = run("uniform", budgets=[2])
    after, _ = run("uniform", budgets=[2], timed=None)
    entry, same = after.entry("uniform", 2), before.entry("uniform", 2)
    assert len(entry.timed_seconds) >= LEAST_PAIRS and not same.timed_seconds
    assert (entry.seconds, entry.values, entry.calls) == (same.seconds, same.values, same.calls)
    again, calls = run("uniform", budgets=[2], timed=None)
    assert again.entry("uniform", 2) == entry and calls == 0  # timed once
    noisy = not entry.speed.known
    _, calls = run("uniform", budgets=[2], timed=["uniform"])  # by name it is tried again, if it could not be measured
    assert (calls > 0) == noisy


def test_what_cannot_run_any_more_has_no_times_and_is_shown_all_the_same(run, brief, monkeypatch):
    """Such as a method whose package was removed since it was drawn."""
    before, _ = run("uniform", "unipc", budgets=[2], calibration=["a", "b"])
    usual = Preparation.ready

    def ready(preparation, method, budget):
        if method == "unipc":
            raise PipelineError("its package is gone.")
        return usual(preparation, method, budget)

    monkeypatch.setattr(Preparation, "ready", ready)
    with pytest.warns(BudcacheWarning, match="UniPC cannot be timed: its package is gone"):
        found, _ = run("uniform", "unipc", budgets=[2], calibration=["a", "b"], timed=None)
    assert found.entry("uniform", 2).timed_seconds
    assert found.entry("unipc", 2) == before.entry("unipc", 2)


@pytest.mark.slow
def test_operations_are_counted_while_drawing(run):
    found, _ = run("uniform", "taylorseer", "dicache", budgets=[3], calibration=["a", "b", "c", "d"])
    assert found.full.equivalents == (STEPS, STEPS)
    assert found.entry("uniform", 3).equivalents == (3, 3)
    for method in ("taylorseer", "dicache"):
        entry = found.entry(method, 3)
        assert all(3 < share < STEPS for share, calls in zip(entry.equivalents, entry.calls, strict=True) if calls == 3)


@pytest.mark.slow
def test_a_threshold_that_misses_the_budget_is_drawn_on_both_sides(run, tmp_path, monkeypatch, brief):
    """Tuned on samples on which it hits the budget, it makes fewer calls on those that are measured on."""
    from budcache.baselines.tuning import Choice, Tuner

    usual = Tuner.choice

    def off(self, budget):
        found = usual(self, budget)
        below, above = (self.method.tuned(value) for value in (1e4, 1e-4))
        return Choice(((below, float(budget)), (above, budget + 1.0)), found.samples, found.sample_calls)

    monkeypatch.setattr(Tuner, "choice", off)
    found, _ = run("teacache", budgets=[3], calibration=["a", "b"])
    entry = found.entry("teacache", 3)
    assert max(entry.calls) < 3 < min(entry.second.calls)
    assert entry.mean_calls == pytest.approx(3)
    low, value, high = entry.values["psnr"], entry.quality("psnr"), entry.second.values["psnr"]
    assert all(a < b < c for a, b, c in zip(low, value, high, strict=True))
    assert entry in found.within(3)
    assert list(found.methods) == ["teacache"], "the second setting is no method of its own"
    assert show(tmp_path) == found
    assert run("teacache", budgets=[3], calibration=["a", "b"]) == (found, 0)
    entry = run("teacache", budgets=[3], calibration=["a", "b"], timed=["teacache"])[0].entry("teacache", 3)
    assert len(entry.timed_seconds) >= LEAST_PAIRS and len(entry.second.timed_seconds) >= LEAST_PAIRS
    assert set(entry.timed_calls) < set(range(3)) and min(entry.second.timed_calls) > 3, "each by its own setting"


def test_whoever_falls_short_of_the_budget_is_marked_and_leaves_nothing_behind(run, tmp_path, monkeypatch):
    """No setting in reserve makes as many calls as were asked for: it is judged at fewer, and that is said."""
    from budcache.baselines.tuning import Choice, Tuner
    from budcache.comparison.table import NOTES, cells, notes

    def below(self, budget):
        least, less = (self.method.tuned(value) for value in (1e4, 0.9e4))
        return Choice(((least, float(budget)), (less, budget + 1.0)), 2, 0)

    monkeypatch.setattr(Tuner, "choice", below)
    found, _ = run("teacache", "uniform", budgets=[4], calibration=["a", "b"])
    entry = found.entry("teacache", 4)
    assert entry.second is None and entry.mean_calls < 4
    assert entry.falls_short and not found.entry("uniform", 4).falls_short
    assert cells(found, entry)[0].text.endswith("*")
    assert NOTES["short"] in notes(found)
    assert not list(tmp_path.rglob("*beside*"))


def test_another_budget_leaves_what_was_given_for_the_first_as_it_is():
    def made_of(*budgets):
        ladder = Ladder.of([Policy(mask=Mask.uniform(5, budget)) for budget in budgets])
        return Preparation(None, 5, budgets, [], None, {"mine": ladder}, 0, 1, None).made_of("mine", 2)

    assert made_of(2) == made_of(2, 3)


@pytest.mark.parametrize(
    ("method", "kind", "strategy"),
    [
        ("authors", "FluxPipeline", "authors-r2-sa100"),
        ("authors", "WanImageToVideoPipeline", "authors-wan"),
        ("authors", "ZImagePipeline", "authors-z-image"),
        ("authors-quick", "WanPipeline", "authors-r1-sa20"),
        ("authors-turbo", "ZImagePipeline", "authors-z-image-turbo"),
    ],
)
def test_the_published_search_has_the_preset_of_the_pipelines_family(method, kind, strategy):
    from budcache.comparison.searching import _options

    assert _options(method, kind)["strategy"] == strategy


def test_what_a_comparison_will_cost_knows_the_family():
    from budcache.comparison.planning import expected

    def cost(kind):
        plan = expected(
            steps=28, budgets=[8], prompts=["a cat"], calibration=4, methods=["authors"], timed=[], kind=kind
        )
        return sum(phase.sample_calls for phase in plan.phases)

    assert cost("WanPipeline") != cost("FluxPipeline") == cost("")


@pytest.mark.parametrize(
    ("model", "kind"),
    [("tiny-wan", "WanPipeline"), ("Tongyi-MAI/Z-Image-Turbo", "ZImage"), ("Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "Wan")],
)
def test_the_family_is_known_without_loading(model, kind):
    from budcache import models

    assert models.pipeline_class(model).startswith(kind)


def test_with_two_experts_the_published_search_is_refused_with_what_can_be_done(tmp_path):
    from budcache.comparison.preparing import Preparation
    from budcache.jobs.meter import Meter

    pipe = entry("wan22").build()
    prepared = Preparation(pipe, 4, [2], [{"prompt": "a"}], tmp_path, {}, 0, 1, Meter("compare", lambda event: None))
    with pytest.raises(SearchError, match=r"the published search does not know .* Leave it out\."):
        prepared.ready("authors", 2)


def test_whoever_cannot_do_with_so_few_calls_does_not_compete(run, monkeypatch):
    from budcache.baselines.tuning import Choice, Tuner

    def above(self, budget):
        return Choice(((self.method.tuned(1e-4), float(STEPS)),), 2, 0)

    monkeypatch.setattr(Tuner, "choice", above)
    found, _ = run("teacache", "uniform", budgets=[2], calibration=["a", "b"])
    assert [entry.method for entry in found.within(2)] == ["uniform"]


def test_settings_are_chosen_once(run, tmp_path, flux):
    found, _ = run("magcache", budgets=[3], calibration=["a", "b"])
    assert found.entry("magcache", 3).learning_calls > 2 * STEPS, "full runs are a part of the cost"
    file = tmp_path / "settings.json"
    assert json.loads(file.read_text())["methods"]["magcache"]["budgets"].keys() == {"3"}
    again, calls = run("magcache", budgets=[3], calibration=["a", "b"], folder=tmp_path / "new", settings=file)
    assert again.entry("magcache", 3).values == found.entry("magcache", 3).values
    assert calls == (1 + 2 + 1 + 2 + 1) * STEPS, "to warm up, drawn and counted; nothing was chosen again"
    file.write_text(file.read_text().replace('"longest"', '"longer"'))
    with pytest.raises(PolicyError, match="does not hold settings that this budcache can use"):
        run("magcache", budgets=[3], calibration=["a", "b"], folder=tmp_path / "other", settings=file)


def test_with_care_for_the_worst_others_are_chosen_by_their_worst_pictures(run, tmp_path, monkeypatch):
    """Of two kinds of settings one is better on average, and has a broken picture."""
    now, seen = [], []

    def noted(pipe, setting, steps):
        now[:] = [setting]
        return caching(pipe, setting, steps)

    def judged(picture, full):
        seen.append(now[0])
        return (45.0 if seen.count(now[0]) < 4 else 20.0) if now[0].order == 1 else 38.0

    monkeypatch.setattr(trials, "caching", noted)
    monkeypatch.setattr(trials, "ratio", judged)
    orders = {}
    for care in ("typical", "worst"):
        seen.clear()
        given = {"budgets": [3], "calibration": ["a", "b", "c", "d"], "folder": tmp_path / care}
        run("taylorseer", care=care, **given)
        orders[care] = Settings.load(tmp_path / care / "settings.json").find("taylorseer", 3).settings[0][0].order
    assert orders["typical"] == 1 != orders["worst"]


def test_what_was_chosen_or_searched_with_another_care_is_not_taken(run, tmp_path):
    given = {"budgets": [3], "calibration": ["a", "b", "c"]}
    run("taylorseer", "budcache-plain", **given)
    ladder, settings = ((tmp_path / name).read_bytes() for name in ("budcache-plain.ladder.json", "settings.json"))
    for name in ("drawn.jsonl", "measured.jsonl", "budcache-plain.ledger.jsonl"):
        (tmp_path / name).unlink()
    with pytest.warns(BudcacheWarning, match="this comparison has care for worst errors"):
        run("budcache-plain", care="worst", **given)
    assert (tmp_path / "budcache-plain.ladder.other.json").read_bytes() == ladder
    with pytest.warns(BudcacheWarning, match="another comparison: care is 'typical' in one and 'worst' in the other"):
        run("taylorseer", care="worst", **given)
    assert (tmp_path / "settings.other.json").read_bytes() == settings


def test_settings_of_another_comparison_are_put_aside(run, tmp_path):
    """Also where they would be settings that can be used: of other prompts."""
    run("taylorseer", budgets=[3], calibration=["a", "b"])
    for name in ("drawn.jsonl", "measured.jsonl"):
        (tmp_path / name).unlink()
    with pytest.warns(BudcacheWarning, match=r"made on other prompts.* settings\.other\.json, and"):
        run("taylorseer", budgets=[3], calibration=["c", "d"])
    assert run("taylorseer", budgets=[3], calibration=["c", "d"])[1] == 0, "nothing is chosen or drawn again"


def test_settings_chosen_by_rules_of_before_are_refused(run, tmp_path):
    run("taylorseer", budgets=[3], calibration=["a", "b"])
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 1}))
    with pytest.raises(PolicyError, match="an earlier budcache chose by other rules"):
        Settings.load(file)


def test_care_for_the_worst_is_said_of_those_that_know_it(run, tmp_path):
    given = {"budgets": [3], "calibration": ["a", "b", "c"]}
    found, _ = run("l2p", "budcache-plain", care="worst", **given)
    assert found.care == show(tmp_path).care == "worst"
    (note,) = (each for each in notes(found) if "the worst" in each)
    assert note.endswith("were searched or chosen: L2P, budcache, plain reuse")
    assert headline(found).endswith("2 prompts are too few to compare a 5th percentile: measure on 20.")
    assert facts(found)["care"].startswith("for the worst samples")
    others, _ = run("uniform", care="worst", folder=tmp_path / "others", **given)
    assert not any("the worst" in each for each in notes(others))
    assert json.loads((tmp_path / "settings.json").read_text())["origin"]["care"] == "worst"
    assert '"care": "worst"' in (tmp_path / "budcache-plain.ledger.jsonl").read_text().splitlines()[0]
    with pytest.raises(JournalError, match=r"with care = 'worst', this one has 'typical'\. .*remove the folder"):
        run("l2p", "budcache-plain", **given)
    chosen = {"folder": tmp_path / "new", "settings": tmp_path / "settings.json"}
    with pytest.raises(SearchError, match="chosen with care worst, and this comparison has typical"):
        run("l2p", **given, **chosen)
    again, _ = run("l2p", care="worst", **given, **chosen)
    assert again.entry("l2p", 3).knob == found.entry("l2p", 3).knob


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"height": 48}, "height is 48 in one and"),
        ({"guidance": 7.0}, "guidance is 7.0 in one and"),
        ({"weights": "0" * 16}, "weights is '0000000000000000' in one and"),
        ({"adapters": ["turbo (12345678) at 1"]}, "adapters is"),
        ({"scheduler": "UniPCMultistepScheduler"}, "scheduler is 'UniPCMultistepScheduler' in one and"),
        ({"scheduler_settings": None}, "scheduler_settings is {} in one and"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_settings_of_other_conditions_are_refused(change, says, run, tmp_path):
    given = {"budgets": [3], "calibration": ["a", "b"]}
    run("ipndm", **given)
    data = json.loads((tmp_path / "settings.json").read_text())
    origin = {name: value for name, value in (data["origin"] | change).items() if value is not None}
    (tmp_path / "other.json").write_text(json.dumps(data | {"origin": origin}))
    with pytest.raises(SearchError, match=f"were chosen at other conditions: {says}.*Leave them out"):
        run("ipndm", **given, folder=tmp_path / "new", settings=tmp_path / "other.json")


def test_settings_of_fewer_prompts_than_ours_learns_on_are_warned_of(run, tmp_path):
    run("ipndm", budgets=[3], calibration=["a", "b"])
    given = {"folder": tmp_path / "new", "settings": tmp_path / "settings.json"}
    with pytest.warns(BudcacheWarning, match="were chosen on 2 prompts, and this comparison has 3 to learn on"):
        found, calls = run("ipndm", budgets=[3], calibration=["c", "d", "e"], **given)
    assert found.entry("ipndm", 3).learned_on == 2
    assert calls == (STEPS + 3) * len(PROMPTS) + STEPS, "nothing is chosen again"


def test_settings_that_were_chosen_on_what_is_measured_are_warned_of(run, tmp_path):
    run("magcache", budgets=[3], calibration=["a", "b"])
    given = {"calibration": ["c", "d"], "folder": tmp_path / "new", "settings": tmp_path / "settings.json"}
    with pytest.warns(BudcacheWarning, match="were chosen on the prompts that are measured on"):
        run("magcache", budgets=[3], prompts=["a", "b"], **given)


def test_a_folder_of_the_protocol_before_is_shown_but_not_gone_on_with(run, tmp_path):
    found, _ = run("uniform")
    for name in ("drawn.jsonl", "measured.jsonl"):
        file = tmp_path / name
        file.write_text(file.read_text().replace('"format": 4', '"format": 3'))
        assert '"format": 3' in file.read_text()
    assert show(tmp_path) == found
    with pytest.raises(FileError, match=r"format 3, in which other methods' settings were chosen.*--show-only"):
        run("uniform")
    data = json.loads((tmp_path / "comparison.json").read_text())
    for each in data["entries"]:
        for name in ("equivalents", "timed_seconds", "timed_calls", "before_seconds", "after_seconds", "memory"):
            each.pop(name, None)
    (tmp_path / "old.json").write_text(json.dumps(data | {"version": 2}))
    old = Comparison.load(tmp_path / "old.json")
    assert old.entry("uniform", 2).mean_equivalents is None
    assert old.entry("uniform", 2).speed.text == "not timed"


def test_a_metric_without_its_weights_costs_one_sentence(run, monkeypatch):
    def absent(self):
        raise BudcacheError("SSIM needs weights. Get them.")

    monkeypatch.setattr(Ssim, "prepare", absent)
    with pytest.warns(BudcacheWarning, match=r"SSIM needs weights\. Get them\. It is left out\."):
        found, _ = run("uniform", metrics=("psnr", "ssim"))
    assert [measure.name for measure in found.measures] == ["psnr"]
    with pytest.raises(BudcacheError, match="SSIM needs weights"):
        run("uniform", metrics=("ssim",))


def test_rows_of_solvers_from_before_they_had_settings_are_drawn_again(run, tmp_path):
    given = {"budgets": [3], "calibration": ["a", "b"]}
    found, _ = run("uniform", "ipndm", **given)
    file = tmp_path / "drawn.jsonl"
    assert file.read_text().count('"settings chosen"') == 1
    file.write_text(file.read_text().replace('"settings chosen"', '""'))
    again, calls = run("uniform", "ipndm", **given)
    assert calls >= 3 * len(PROMPTS)
    assert again.entry("ipndm", 3).values == found.entry("ipndm", 3).values
    assert run("uniform", "ipndm", **given)[1] == 0


@pytest.mark.parametrize("solver", ["ipndm", "dpmpp", "unipc"])
def test_fewer_steps_of_other_solvers_take_part(run, flux, solver):
    own = flux[0].scheduler
    found, _ = run("fewer-steps", solver, budgets=[3], calibration=["a", "b"])
    assert flux[0].scheduler is own
    assert found.entry(solver, 3).calls == (3, 3)
    assert found.entry(solver, 3).values != found.entry("fewer-steps", 3).values


def test_what_lemica_measures_is_in_the_estimate(tmp_path):
    from budcache.comparison.preparing import Preparation
    from budcache.jobs.meter import Meter

    prompts = [{"prompt": "a"}] * 8
    prepared = Preparation(None, 28, [6, 8], prompts, tmp_path, {}, 0, 1, Meter("compare"))
    calls = {name: prepared.expected_calls(name) for name in ("lemica", "magcache", "uniform")}
    assert calls["uniform"] == 0
    assert calls["lemica"] == 4 * 2335
    assert calls["magcache"] == 14 * (16 * 4 + 8 * 4), "16 masks on four prompts, half of them on four more"


def test_full_runs_to_choose_by_are_in_the_estimate_once():
    asked = {"steps": 28, "budgets": [6], "prompts": ["a"], "calibration": 8, "timed": []}
    one, both = (expected(methods=names, **asked) for names in (["magcache"], ["magcache", "taylorseer"]))
    alone = expected(methods=["taylorseer"], **asked)
    shared = 8 * 28 + 28 + 28 + 28  # full runs to choose by; to measure against, to warm up, to count operations
    assert both.sample_calls == one.sample_calls + alone.sample_calls - shared


def test_only_those_who_take_part_are_timed(run):
    with pytest.raises(SearchError, match="'l2p' is to be timed, but does not take part"):
        run("uniform", budgets=[2], timed=["l2p"])


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "there is no file .* Give the settings.json"), ("{}", "does not hold settings .* Give the settings.json")],
)
def test_what_is_no_file_of_settings_is_a_sentence(run, tmp_path, content, says):
    file = tmp_path / "given.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BudcacheError, match=says):
        run("magcache", budgets=[3], calibration=["a", "b"], folder=tmp_path / "new", settings=file)
    assert not (tmp_path / "new").exists()


def test_rows_that_are_not_asked_for_are_named(run):
    run("uniform", "fewer-steps", budgets=[2])
    found, _ = run("uniform", budgets=[2])
    told = "Also drawn in this folder, but not asked for now: fewer steps at 2 calls. Name them to show them."
    assert found.warnings == (told,)


def test_a_single_name_may_come_by_itself_and_a_pipelines_own_bars_keep_quiet(flux, tmp_path, capsys):
    pipe, call = flux
    pipe.set_progress_bar_config(leave=False)
    given = {"steps": STEPS, "budgets": 2, "prompts": PROMPTS, "call": call, "folder": tmp_path}
    found = compare(pipe, methods="uniform", metrics="psnr", timed=[], **given)
    assert found.entry("uniform", 2) is not None
    assert "it/s" not in capsys.readouterr().err
    pipe(prompt="a cat", num_inference_steps=2, **call)
    assert "it/s" in capsys.readouterr().err, "they are back"
    assert pipe._progress_bar_config == {"leave": False}
    pipe.set_progress_bar_config()
    with pytest.raises(SearchError, match="there is no method 'none'"):
        compare(pipe, methods="uniform", metrics="psnr", timed="none", **given)


def test_what_differs_is_said_by_its_name_where_it_has_one(run, flux):
    """Samples share the guidance, so their digest differs, too."""
    run("uniform", budgets=[2], calibration=["a", "b"])
    other = {**flux[1], "guidance_scale": 7.0}
    with pytest.raises(JournalError, match=r"with guidance = 3.5, this one has 7.0"):
        run("uniform", budgets=[2], calibration=["a", "b"], call=other)


@pytest.mark.parametrize("change", [{"height": "x"}, {"prompts": "many"}, {"weights": 1}])
def test_settings_with_a_damaged_origin_are_refused_by_the_name_of_their_file(change, run, tmp_path):
    run("ipndm", budgets=[3], calibration=["a", "b"])
    data = json.loads((tmp_path / "settings.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps(data | {"origin": data["origin"] | change}))
    with pytest.raises(PolicyError, match=r"other\.json does not hold settings that this budcache can use"):
        run("ipndm", budgets=[3], folder=tmp_path / "new", settings=tmp_path / "other.json")
