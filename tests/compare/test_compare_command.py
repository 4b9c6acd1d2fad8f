"""`budcache compare`, in processes of its own where it is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from comparing import BUDGETS, METHODS, started
from filelock import FileLock

from budcache import Ladder, Mask, Policy
from budcache.cli import demo
from budcache.cli.compare import told_apart
from budcache.cli.prompts import prompts_of
from budcache.comparison import Comparison

pytestmark = pytest.mark.xdist_group("compare command")  # all look at one comparison, which takes a while

ROWS = 1 + len(METHODS) * len(BUDGETS)  # the full run, every method at every budget
LINES = 2 + ROWS  # before them the header, and what is asked for


def essence(folder):
    """What a comparison found, but for the time it took."""
    found = Comparison.load(folder / "comparison.json").model_dump(mode="json")
    for entry in found["entries"]:
        for each in filter(None, (entry, entry["second"])):
            for name in [
                name
                for name in each
                if "seconds" in name or name in ("memory", "full_memory", "timed_calls", "full_calls")
            ]:
                del each[name]
    drawn = [path for kind in ("*.png", "*.npy") for path in sorted(folder.rglob(kind))]
    return found, {path.relative_to(folder): path.read_bytes() for path in drawn}


def test_it_writes_a_table_a_page_and_the_numbers(compared):
    folder, output, errors = compared
    assert errors.startswith("compare: about ")
    assert "sample-calls (model calls times samples): full run 24, fewer steps" in errors
    for title in ("full run, 6 steps", "fewer steps", "TeaCache", "budcache"):
        assert title in output
    said = " ".join(output.split())
    assert "instead of 6 model calls" in said and "budcache stays at PSNR" in said
    for name in ("comparison.json", "comparison.csv", "comparison.html", "budcache.ladder.json"):
        assert (folder / name).stat().st_size > 0
    assert "red &lt;b&gt;" in (folder / "comparison.html").read_text()
    assert "red <b>" not in (folder / "comparison.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
def test_killed_again_and_again_it_ends_the_same(command, compared, tmp_path, run_here):
    out = tmp_path / "out"
    ledger, kept, killed = out / "drawn.jsonl", b"", 0
    for lines in (3, LINES - 3):
        process = started(*command, "--out", out, cwd=tmp_path)
        try:
            while process.poll() is None and (not ledger.exists() or ledger.read_bytes().count(b"\n") < lines):
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        finally:
            process.kill()
        killed += process.returncode == -signal.SIGKILL
        whole = ledger.read_bytes()
        assert whole.startswith(kept), "what was finished was lost"
        kept = whole[: whole.rfind(b"\n") + 1]
        with ledger.open("ab") as file:
            file.write(b'{"made of": "", "ent')  # as if killed in the middle of a line
    assert killed == 2, "the comparison was over before it could be killed"
    code, output, errors = run_here(*command, "--out", out, "--json")
    assert code == 0, errors
    assert ledger.read_bytes().startswith(kept)
    assert essence(out) == essence(compared[0])
    said = json.loads(output)
    assert len(said["entries"]) == ROWS
    assert said["left_out"] == []
    (ours,) = [entry for entry in said["entries"] if (entry["method"], entry["budget"]) == ("budcache", 3)]
    ratios = Comparison.load(out / "comparison.json").entry("budcache", 3).values["psnr"]
    assert ours["psnr_worst"] == min(ratios) < ours["psnr_p5"] < ours["psnr"] < max(ratios)
    assert ours["psnr_se"] == pytest.approx(abs(ratios[0] - ratios[1]) / 2)
    assert "speedup" not in ours  # nothing was timed
    assert ours["ssim_worst"] <= ours["ssim_p5"] <= ours["ssim"]
    assert f"\n{ROWS} rows kept from an earlier run" in run_here(*command, "--out", out)[1]


def test_a_folder_of_another_comparison_is_refused(command, compared, tmp_path, run_here):
    out = tmp_path / "out"
    shutil.copytree(compared[0], out)
    code, _, errors = run_here(*command, "--out", out, "--seed", 5)
    assert code == 2
    assert "belongs to a comparison with seed = 0, this one has 5. Choose another place" in errors
    assert f"the folder {out} belongs to" in errors
    assert len(errors.splitlines()) == 1
    (out / "drawn.jsonl").write_text("something else\n")
    code, _, errors = run_here(*command, "--out", out)
    assert code == 2
    assert "is not a record" in errors


def test_a_folder_in_use_is_refused(command, compared, tmp_path, run_here):
    out = tmp_path / "out"
    shutil.copytree(compared[0], out)
    before = essence(out)
    with FileLock(out / ".drawn.jsonl.lock"):
        code, _, errors = run_here(*command, "--out", out)
    assert code == 2
    assert "drawn.jsonl is in use by another process. Wait for it, or choose another place." in errors
    assert essence(out) == before


def test_what_is_there_can_be_shown_without_a_model(compared, tmp_path, run_here):
    out = tmp_path / "out"
    shutil.copytree(compared[0], out)
    for name in ("comparison.json", "comparison.csv", "comparison.html"):
        (out / name).unlink()
    code, output, errors = run_here("compare", "--show-only", "--out", out)
    assert (code, errors) == (0, "")
    assert "budcache stays at PSNR" in " ".join(output.split())
    assert Comparison.load(out / "comparison.json") == Comparison.load(compared[0] / "comparison.json")
    assert (out / "comparison.html").exists()
    code, _, errors = run_here("compare", "--show-only", "--out", tmp_path / "nothing")
    assert code == 2
    assert "there is no comparison in" in errors
    code, _, errors = run_here("compare", "--out", out)
    assert code == 2
    assert "compare needs a model and --budgets" in errors


def test_more_can_be_asked_of_a_finished_folder(command, compared, tmp_path, run_here):
    """Another method and a policy of the user's are added; what is there is not drawn again."""
    out = tmp_path / "out"
    shutil.copytree(compared[0], out)
    before = Comparison.load(out / "comparison.json")
    mine = Ladder.load(out / "budcache.ladder.json").save(tmp_path / "mine.json")
    arguments = [part if part != ",".join(METHODS) else "uniform,magcache" for part in command]
    code, output, errors = run_here(*arguments, "--out", out, "--policy", mine)
    assert code == 0, errors
    after = Comparison.load(out / "comparison.json")
    assert list(after.methods) == ["uniform", "magcache", "policy:mine.json"]
    assert after.entry("uniform", 3) == before.entry("uniform", 3)
    assert after.entry("policy:mine.json", 3).values == before.entry("budcache", 3).values
    assert after.ours == "policy:mine.json"
    assert "mine.json" in output


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["a.json", "b/c.json"], ["a.json", "c.json"]),
        (["a/l.json", "b/l.json", "c.json"], ["a/l.json", "b/l.json", "c.json"]),
        (["x/a/l.json", "y/a/l.json", "y/b/l.json"], ["x/a/l.json", "y/a/l.json", "b/l.json"]),
        (["l.json", "./l.json"], ["l.json"]),
    ],
    ids=" ".join,
)
def test_policies_are_called_by_as_much_of_their_path_as_tells_them_apart(files, names):
    named = told_apart([Path(file) for file in files])
    assert list(named) == names
    assert list(named.values()) == [Path(file) for file in files[: len(names)]]


def test_two_policies_of_one_file_name_are_both_compared(command, run_here, tmp_path):
    masks = {"one": Mask.of(6, [0, 1, 2]), "other": Mask.of(6, [0, 3, 5])}
    files = [Policy(mask=mask).save(tmp_path / name / "policy.json") for name, mask in masks.items()]
    arguments = [part if part != ",".join(METHODS) else "uniform" for part in command]
    given = [part for file in files for part in ("--policy", file)]
    code, output, errors = run_here(*arguments, "--budgets", 3, "--out", tmp_path / "out", *given)
    assert code == 0, errors
    found = Comparison.load(tmp_path / "out" / "comparison.json")
    for name, mask in masks.items():
        assert found.entry(f"policy:{name}/policy.json", 3).usual_mask == mask
        assert f"{name}/policy.json" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budgets", "x"], "budgets 'x' cannot be read"),
        (["--budgets", "9"], "budget of 9 does not fit 6 steps"),
        (["--methods", "nonsense"], "no method 'nonsense'"),
        (["--methods", ","], "--methods names nothing"),
        (["--metrics", "fid"], "no metric 'fid'"),
        (["--prompts", "nowhere.txt"], "nowhere.txt cannot be read"),
        (["--policy", "nowhere.json"], "there is no file nowhere.json"),
        (["--count", "50"], "--count is 50, but"),
        (["--frames", "5"], "takes no num_frames"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_earns_a_sentence(arguments, message, command, run_here, tmp_path):
    code, output, errors = run_here(*command, "--out", tmp_path / "out", *arguments)
    assert (code, output) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1
    assert errors.startswith("budcache: ")


@pytest.mark.parametrize("option", ["--methods", "--metrics", "--timed"])
def test_a_name_that_is_not_known_is_refused_before_the_model_is_loaded(option, run_here, tmp_path):
    code, _, errors = run_here(
        "compare", "tiny-flux", "--budgets", 3, option, "tecache", "--out", tmp_path, "--dry-run"
    )
    assert code == 2
    assert "tecache" in errors
    assert len(errors.splitlines()) == 1


def test_so_many_of_one_file_are_calibrated_on_as_are_asked_for(tmp_path, capsys):
    from budcache.cli.prompts import _split

    (tmp_path / "all.txt").write_text("a\nb\nc\nd\ne\nf\n")
    assert _split(tmp_path / "all.txt", 2, 4) == (["a", "b", "c", "d"], ["e", "f"])
    assert "the first 4 of 6 prompts" in capsys.readouterr().err


def test_one_file_of_prompts_serves_both(model, run_here, tmp_path):
    (tmp_path / "all.txt").write_text("a house\na tree\na boat\na cat\na dog\nthe sea\nthe sun\n")
    command = ["compare", model / "tiny", "--steps", 5, "--budgets", 2, "--methods", "magcache", "--metrics", "psnr"]
    command += ["--prompts", tmp_path / "all.txt", "--height", 32, "--width", 32, "--timed", "none"]
    code, _, errors = run_here(*command, "--out", tmp_path / "out", "--count", 2)
    assert code == 0, errors
    said, cost, *_ = errors.splitlines()
    assert said == "budcache: calibrating on the first 2 of 7 prompts, measuring on 2 others."
    assert cost.startswith("compare: about ")
    found = Comparison.load(tmp_path / "out" / "comparison.json")
    assert (found.calibration, found.prompts) == (2, ("a boat", "a cat"))
    assert found.entry("magcache", 2).learned_on == 2
    # What needs no calibration is measured on all of them.
    code, _, errors = run_here(*command, "--methods", "uniform", "--count", 7, "--out", tmp_path / "all")
    assert code == 0
    assert "calibrating on" not in errors


@pytest.mark.parametrize(
    ("prompts", "more", "message"),
    [
        (
            "a cat\n",
            [],
            "has 1 prompt, but methods have to be calibrated on two others",
        ),
        (
            "a cat\na dog\na boat\n",
            ["--calibration-count", 3],
            "--calibration-count is 3, but",
        ),
        ("a cat\na dog\na boat\n", ["--count", 3], "has 1 to measure on beside 2 to calibrate on. Lower it, or give"),
    ],
)
def test_too_few_prompts_are_said_before_anything_is_loaded(prompts, more, message, run_here, tmp_path):
    (tmp_path / "few.txt").write_text(prompts)
    command = ["compare", "no/where", "--budgets", 3, "--prompts", tmp_path / "few.txt", *more]
    code, _, errors = run_here(*command, "--out", tmp_path / "out")
    assert code == 2
    assert message in errors
    assert "--calibration" in errors
    assert len(errors.splitlines()) == 1


def test_a_model_without_prompts_needs_some(model, run_here, tmp_path):
    code, _, errors = run_here("compare", model / "tiny", "--budgets", 3, "--out", tmp_path / "out")
    assert code == 2
    assert "Give a file of them with --prompts" in errors


def test_a_dry_run_says_the_cost_and_leaves_nothing_behind(run_here, tmp_path):
    command = [
        "compare",
        "tiny-flux",
        "--budgets",
        "6,10",
        "--count",
        4,
        "--out",
        tmp_path / "out",
        "--dry-run",
        "--json",
    ]
    facts = json.loads(run_here(*command)[1])
    assert facts["sample_calls"] == sum(facts["phases"].values())
    assert facts["phases"]["full run"] == (4 + 2) * 28  # one to warm up, one whose operations are counted
    fewer = json.loads(run_here(*command, "--calibration-count", 4, "--methods", "budcache,uniform")[1])
    assert fewer["sample_calls"] < facts["sample_calls"] / 5
    assert not (tmp_path / "out").exists()
    code, output, errors = run_here("compare", "tinyflux", "--budgets", 6, "--dry-run")
    assert (code, output) == (2, "")
    assert "did you mean tiny-flux?" in errors


def test_care_is_handed_on(command, run_here, tmp_path):
    given = ["--care", "worst", "--methods", "uniform", "--out", tmp_path / "out", "--json"]
    code, output, errors = run_here(*command, *given)
    assert code == 0, errors
    assert json.loads(output)["care"] == "worst" == Comparison.load(tmp_path / "out" / "comparison.json").care


def test_settings_that_were_chosen_before_are_taken(run_here, tmp_path):
    asked = ["compare", "tiny-flux", "--budgets", "6,8", "--methods", "magcache", "--dry-run", "--json"]
    fresh, known = (
        json.loads(run_here(*asked, *more)[1])["sample_calls"] for more in ((), ("--settings", demo.PICTURES.settings))
    )
    assert known < fresh
    code, output, errors = run_here(*asked, "--settings", tmp_path / "none.json")
    assert (code, output) == (2, "")
    assert "Give the settings.json of a comparison" in " ".join(errors.split())


def test_what_is_only_shown_cannot_be_chosen(compared, run_here):
    code, _, errors = run_here("compare", "--show-only", "--out", compared[0], "--budgets", 2)
    assert code == 2
    assert "so --budgets has no effect. Leave it out" in " ".join(errors.split())


def test_a_dry_run_does_not_count_what_is_drawn(command, compared, run_here):
    again = [*command, "--out", compared[0], "--dry-run"]
    assert json.loads(run_here(*again, "--json")[1])["sample_calls"] == 0
    code, output, errors = run_here(*again)
    assert code == 0
    assert f"{ROWS} rows of {ROWS} in {compared[0]} drawn already" in " ".join((output + errors).split())
    more = json.loads(run_here(*again, "--json", "--methods", ",".join([*METHODS, "unipc"]))[1])
    assert set(more["phases"]) == {"full run", "UniPC", "measuring"}
    assert more["phases"]["full run"] == 6  # to warm up
    timed = json.loads(run_here(*again, "--json", "--timed", "uniform")[1])
    assert set(timed["phases"]) == {"timing", "measuring"} and timed["phases"]["timing"] > 0
    for other in (
        *(["--seed", 1], ["--care", "worst"], ["--count", 1], ["--calibration-count", 3]),
        *(["--guidance", 7], ["--height", 48]),
    ):
        assert json.loads(run_here(*again, "--json", *other)[1])["phases"]["full run"] > 0, other


def test_all_prompts_of_a_file_are_measured_on_also_with_an_embedded_model(tmp_path):
    """Of its own prompts it takes 16, for it brings more than anybody wants to wait for."""
    (tmp_path / "many.txt").write_text("".join(f"a thing {number}\n" for number in range(20)))
    (tmp_path / "one.txt").write_text("a thing\n")
    given = {"calibration": None, "count": None, "calibration_count": 4, "methods": None}
    for name, count in (("many.txt", 20), ("one.txt", 1)):
        learned_on, measured_on = prompts_of("tiny-flux", tmp_path / name, **given)
        assert (len(learned_on), len(measured_on)) == (4, count)
    assert len(prompts_of("tiny-flux", None, **given)[1]) == 16
