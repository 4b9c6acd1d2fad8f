"""The command: installed and in processes of its own where that matters, in this one where it does not."""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from toys import Toy

import budcache
from budcache import Ladder, Mask, Origin, Policy, Quality, Record
from budcache.calibration.calibration import Calibration
from budcache.events import Phase, Planned, Progress
from budcache.records.record import Runs
from budcache.strategies import STRATEGIES, read_history

COMMAND = Path(sys.executable).parent / ("budcache.exe" if os.name == "nt" else "budcache")
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "80", "NO_COLOR": "1"}
SIZE = ["--height", "32", "--width", "32"]
pytestmark = pytest.mark.xdist_group("search command")  # many look at one search, in a process of its own
STEPS, BUDGETS = 8, (2, 3, 4)
MASKS = 1 + 7 + 6 + 5  # that a ladder up to 4 of 8 steps scores


def command(*arguments, cwd):
    """Run the command to its end."""
    return subprocess.run(
        [str(COMMAND), *map(str, arguments)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=240
    )


def worked(*arguments, cwd):
    done = command(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny pipeline in a folder, as users have them."""
    from zoo import entry

    folder = tmp_path_factory.mktemp("models") / "tiny"
    entry("flux").build().save_pretrained(folder)
    return folder


def search_command(model, out):
    """The search that several tests run; in all of them it must end the same."""
    texts = [part for text in ("a cat", "two dogs", "red") for part in ("--prompt", text)]
    how = ["--strategy", "ladder", "--selection", 1]
    return ["search", model, "--steps", STEPS, "--budgets", "2-4", *texts, *how, *SIZE, "--out", out]


@pytest.fixture(scope="session")
def searched(model, tmp_path_factory):
    """A search that nobody disturbed: its folder, with the ladder and the ledger, and what it printed."""
    folder = tmp_path_factory.mktemp("searched")
    return folder, worked(*search_command(model, "found.json"), cwd=folder)


def essence(path):
    """What a ladder says, but for what it cost."""
    return [
        (
            str(rung.mask),
            rung.reuse,
            rung.weights,
            rung.rows,
            rung.sigmas,
            rung.quality,
            [line.gain for line in rung.refined],
        )
        for rung in Ladder.load(path)
    ]


def scored(ledger):
    """The lines of a ledger, by how the reuse was scored."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    return {reuse: [line for line in lines if line.get("reuse") == reuse] for reuse in ("plain", "fitted")}


def test_search_writes_a_ladder_and_its_history(searched, model):
    folder, done = searched
    assert sorted(path.name for path in folder.glob("[!.]*")) == ["found.json", "found.ledger.jsonl"]
    ladder = Ladder.load(folder / "found.json")
    assert ladder.budgets == BUDGETS
    assert {rung.quality.samples for rung in ladder} == {1}
    assert {rung.origin.model for rung in ladder} == {"tiny"}
    # The ladder is climbed twice; behind the second climb come those masks of the first that are new to it.
    lines = scored(folder / "found.ledger.jsonl")
    assert len(lines["plain"]) == MASKS
    assert MASKS <= len(lines["fitted"]) <= MASKS + len(BUDGETS)
    assert {line["phase"] for line in lines["fitted"]} <= {"ladder", "start"}
    known = {line["mask"]: line["losses"] for line in lines["plain"]}
    assert {len(losses) for losses in known.values()} == {2}, "a loss for each sample"
    plain = {Mask.parse(mask): sum(losses) / 2 for mask, losses in known.items()}
    for rung in ladder:
        if not rung.is_blended:
            assert rung.quality.calibration_loss == plain[rung.mask]
        else:
            best = min(loss for mask, loss in plain.items() if mask.budget == rung.budget)
            assert rung.quality.calibration_loss < best, "what was fitted is worse than the best plain mask"
    assert any(rung.is_blended for rung in ladder)
    # The table: one line a rung, with its strip and its PSNR.
    for rung in ladder:
        strip = "".join("█" if bit else "·" for bit in rung.mask)
        (line,) = [line for line in done.stdout.splitlines() if strip in line]
        assert line.split()[0] == str(rung.budget)
        assert f"{rung.quality.psnr:.1f}" in line
        assert ("blend" in line) == rung.is_blended
    assert f"found.json  {ladder.rungs[0].origin.calls} sample-calls" in done.stdout
    assert f"budcache generate {model} --policy found.json --budget 4" in done.stdout
    # What it will cost is said before the work begins, and how long that is behind the first full run.
    cost, time = done.stderr.splitlines()
    told = budcache.estimate(steps=STEPS, budgets=BUDGETS, prompts=3, selection=1, strategy="ladder")
    assert cost.startswith(
        f"search: about {told.sample_calls} sample-calls (model calls times samples): full runs 16, "
    )
    assert re.fullmatch(r"that is about \d+ (s|min) here, by the first full run", time)


@pytest.fixture
def in_folder(searched, monkeypatch):
    """The folder of the search that nobody disturbed, as the working directory."""
    monkeypatch.chdir(searched[0])
    return searched[0]


def test_show_prints_and_draws_a_ladder(in_folder, run_here):
    code, output, errors = run_here("show", "found.json", "--plot", "masks.png")
    assert (code, errors) == (0, "drawn to masks.png\n")
    assert output.startswith("ladder of 3 rungs, 8 steps")
    assert (in_folder / "masks.png").read_bytes().startswith(b"\x89PNG")
    (in_folder / "masks.png").unlink()
    shown = json.loads(run_here("show", "found.json", "--json")[1])
    assert [rung["budget"] for rung in shown["rungs"]] == list(BUDGETS)
    assert [Mask.parse(rung["mask"]).computed for rung in shown["rungs"]] == [
        tuple(rung["computed"]) for rung in shown["rungs"]
    ]


def test_show_prints_and_draws_a_history(in_folder, run_here, tmp_path):
    history = read_history(in_folder / "found.ledger.jsonl")
    code, output, _ = run_here("show", "found.ledger.jsonl", "--plot", tmp_path / "deep" / "history.svg")
    assert code == 0
    assert output.startswith(f"search of {len(history)} masks, {history[-1].sample_calls} sample-calls")
    for budget in BUDGETS:
        best = min((step for step in history if step.mask.budget == budget), key=lambda step: step.loss)
        assert f"{budget} calls  {''.join('█' if bit else '·' for bit in best.mask)}  loss {best.loss:.4g}" in output
    assert "<svg" in (tmp_path / "deep" / "history.svg").read_text()
    shown = json.loads(run_here("show", "found.ledger.jsonl", "--json")[1])
    assert [(step["mask"], step["loss"]) for step in shown] == [(str(step.mask), step.loss) for step in history]


def test_show_prints_a_policy(tmp_path):
    Policy(mask=Mask.parse("1001")).save(tmp_path / "p.json")
    assert "█··█" in worked("show", "p.json", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("quality", "figure", "says"),
    [
        (Quality(psnr=39.87, psnr_error=1.26, samples=6, used_to_choose=True), "39.9 ± 1.3", "and standard error on 6"),
        (Quality(psnr=39.87, psnr_error=1.26, samples=32, used_to_choose=False), "39.9 ± 1.3", "error on 32 samples"),
        (Quality(psnr=39.87, samples=1, used_to_choose=True), "39.9", "mean on 1 sample "),
        (Quality(psnr=39.87, samples=16), "39.9", "mean on 16 samples"),
    ],
    ids=["chosen by them", "fresh", "one", "of version 1"],
)
def test_show_says_how_sure_a_figure_is(quality, figure, says, run_here, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    path = Ladder.of([Policy(mask="1001", quality=quality)]).save(tmp_path / "a.json")
    code, output, _ = run_here("show", path)
    (row,) = [line for line in output.splitlines() if "█··█" in line]
    assert code == 0 and row.split("output")[1].strip() == figure
    text = " ".join(output.split())
    assert says in text
    assert ("chosen by these samples" in text) == (quality.used_to_choose is True)
    assert ("few samples" in text) == (quality.samples == 1)
    shown = json.loads(run_here("show", path, "--json")[1])["rungs"][0]["quality"]
    assert shown == quality.model_dump(exclude_none=True)
    other = Policy(mask="1011", quality=Quality(psnr=50.0, samples=40))
    Ladder.load(path).merged(Ladder.of([other])).save(path)
    assert f"on {quality.samples} to 40 samples" in " ".join(run_here("show", path)[1].split())


def test_generate_draws_what_the_library_draws(searched, model, run_here, monkeypatch, tmp_path):
    """One prompt, into the file that was named; text in brackets is text."""
    import diffusers
    import numpy as np
    import torch
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    ladder, prompt = searched[0] / "found.json", "a [/red] :cat:"
    rung = ["--policy", ladder, "--budget", 3]
    code, output, errors = run_here("generate", model, "-p", prompt, *rung, *SIZE, "--seed", 7, "--out", "cat.png")
    assert code == 0 and output.startswith("cat.png  3 of 8 calls, ")
    assert repr(prompt) in errors
    pipe = diffusers.FluxPipeline.from_pretrained(model, local_files_only=True)
    with budcache.applied(pipe, ladder, budget=3):
        generator = torch.Generator().manual_seed(7)
        image = pipe(prompt, height=32, width=32, num_inference_steps=STEPS, generator=generator).images[0]
    drawn = np.asarray(Image.open("cat.png")).astype(int)
    # Weights may lie elsewhere in memory and be multiplied along another path, which can move a value by one.
    assert np.abs(drawn - np.asarray(image)).max() <= 1


def test_generate_draws_several(searched, model, run_here, monkeypatch, tmp_path):
    """Two prompts, two of each, into a folder; told in JSON."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    rung = ["--policy", searched[0] / "found.json", "--budget", 2]
    several = ["-p", "a cat", "-p", "red", "--count", 2, "--seed", 5]
    code, output, errors = run_here("generate", model, *several, *rung, *SIZE, "--out", "drawn", "--json")
    assert (code, errors) == (0, "")
    samples = json.loads(output)["samples"]
    assert [(s["prompt"], s["seed"], s["calls"]) for s in samples] == [
        (text, seed, 2) for text in ("a cat", "red") for seed in (5, 6)
    ]
    assert [s["file"] for s in samples] == [f"drawn/00{i}.png" for i in range(4)]
    pixels = {Image.open(tmp_path / s["file"]).tobytes() for s in samples}
    assert len(pixels) == 4
    assert {Image.open(tmp_path / s["file"]).size for s in samples} == {(32, 32)}


def test_generate_by_time_says_which_rung_and_keeps_the_measurement(searched, model, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Ladder.load(searched[0] / "found.json").save("found.json")
    drawing = ["generate", model, "-p", "red", "--policy", "found.json", *SIZE]
    code, output, errors = run_here(*drawing, "--seconds", 9999)
    assert code == 0 and "8 of 8 calls" in output
    assert "budcache: the full run of 8 calls fits into 9999 s: " in errors
    kept = Path("found.timings.json").read_bytes()
    (timing,) = json.loads(kept)["timings"]
    assert timing["on"]["call"]["height"] == 32 and "red" not in kept.decode()
    middle = timing["before"] + 3.5 * timing["call"] + timing["after"]
    code, output, _ = run_here(*drawing, "--seconds", middle, "--json")
    found = json.loads(output)
    assert [sample["calls"] for sample in found["samples"]] == [3] and found["reason"].startswith("3 of 8 calls fit")
    code, _, errors = run_here(*drawing, "--seconds", timing["before"])
    assert code == 2 and "even the smallest rung, 2 calls, takes" in errors
    assert Path("found.timings.json").read_bytes() == kept
    assert run_here(*drawing, "--seconds", 9999, "--measure-again")[0] == 0
    assert Path("found.timings.json").read_bytes() != kept


def test_check_ends_with_what_it_found(searched, model, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rung = Ladder.load(searched[0] / "found.json")[3]
    rung.model_copy(update={"quality": None}).save("kept.json")
    rung.model_copy(update={"quality": Quality(psnr=99.0, psnr_error=0.01, samples=64)}).save("boasting.json")
    trying = ["check", model, *SIZE, "--not-timed", "--policy"]
    code, output, errors = run_here(*trying, "kept.json")
    assert code == 0 and "trying 3 of 8 calls on 2 prompts" in errors
    assert [line[0] for line in output.splitlines()] == ["✓", "✓", "✓", "?", "?"]
    assert "exactly 3 of 8 calls on 2 samples" in output
    code, output, _ = run_here(*trying, "boasting.json", "-p", "red", "--json")
    found = json.loads(output)
    assert (code, found["kept"], found["promises"]["quality"]["kept"]) == (1, False, False)
    assert found["promises"]["calls"]["kept"] and found["calls"] == [3]
    assert run_here(*trying, "missing.json")[0] == 2


def test_generate_tells_of_a_guidance_far_from_that_of_the_fit(searched, model, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rung = ["--policy", searched[0] / "found.json", "--budget", 3]
    drawing = ["generate", model, "-p", "red", *rung, *SIZE, "--json"]
    assert Ladder.load(rung[1])[3].origin.guidance == 3.5, "the pipeline's own, for none was given"
    assert run_here(*drawing, "--guidance", 5)[2] == ""
    code, _, errors = run_here(*drawing, "--guidance", 7)
    assert code == 0 and errors == (
        "budcache: warning: the policy was fitted at guidance 3.5, this run has 7: quality may suffer. Fit it again at "
        "that guidance, with call={'guidance_scale': 7} or --guidance 7.\n"
    )


@pytest.fixture(scope="session")
def video_model(tmp_path_factory):
    """A tiny pipeline that makes videos."""
    from zoo import entry

    folder = tmp_path_factory.mktemp("models") / "video"
    entry("wan-t2v-euler").build().save_pretrained(folder)
    return folder


def test_generate_writes_a_video_under_the_name_it_was_given(video_model, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    drawing = ["generate", video_model, "-p", "a cat", "--steps", 1, "--frames", 5, "--height", 32, "--width", 32]
    for name, begin in (("a.gif", b"GIF89a"), ("a.webp", b"RIFF"), ("a.mp4", b"\0\0\0"), ("out.mp4", b"\0\0\0")):
        chosen = [] if name == "out.mp4" else ["--out", name]  # which is the default
        code, output, errors = run_here(*drawing, *chosen)
        assert code == 0, errors
        assert output.startswith(f"{name}  5 frames at 16 a second, 1 calls, ")
        assert (tmp_path / name).read_bytes().startswith(begin)
    code, output, errors = run_here(*drawing, "--out", "a.png")
    assert (code, output) == (2, "")
    assert (
        errors == "budcache: a.png is a name for a picture, but the pipeline makes a video. Use .mp4, .webp or .gif.\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.gif", "a.mp4", "a.webp", "out.mp4"]
    code, output, _ = run_here(*drawing, "--out", "b.webp", "--fps", 8, "--json")
    (sample,) = json.loads(output)["samples"]
    assert (code, sample["frames"], sample["fps"]) == (0, 5, 8)


def test_generate_in_full_numbers_the_files(model, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, output, _ = run_here("generate", model, "-p", "a cat", "-n", 2, "--steps", 3, *SIZE, "--out", "a.png")
    assert code == 0
    assert [line.split("  ")[0] for line in output.splitlines()] == ["a-000.png", "a-001.png"]
    assert all("  3 calls, " in line for line in output.splitlines())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-000.png", "a-001.png"]


def test_search_reads_prompt_files_and_stops_where_told(model, run_here, monkeypatch, tmp_path):
    """A CSV with captions over several lines; the answer as JSON, and a limit that ends it early."""
    (tmp_path / "texts.csv").write_text('number,caption\n1,"a cat,\nsitting"\n2,red\n3,\n', encoding="utf-8-sig")
    monkeypatch.chdir(tmp_path)
    code, output, errors = run_here(
        *("search", model, "--steps", 6, "--budgets", "2,4", "--prompts", "texts.csv", "--selection", 0, *SIZE),
        *("--strategy", "ladder", "--max-evaluations", 4, "--ledger", "here/kept.jsonl", "--out", "l.json", "--json"),
    )
    assert (code, errors) == (0, "")
    facts = json.loads(output)
    assert (facts["stopped"], facts["budgets"]) == ("evaluations limit of 4", [2])
    assert (facts["ladder"], facts["ledger"]) == ("l.json", "here/kept.jsonl")
    assert len(read_history(tmp_path / "here" / "kept.jsonl")) == 4
    (rung,) = Ladder.load(tmp_path / "l.json")
    assert rung.origin.prompts == 2
    assert rung.origin.calls == facts["calls"]


def test_search_takes_the_first_prompts_and_tells_of_very_many(model, run_here, monkeypatch, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{number} cats\n" for number in range(300)))
    monkeypatch.chdir(tmp_path)
    one = ["search", model, "--steps", 2, "--budgets", 1, "--prompts", "texts.txt", *SIZE, "--json", "--selection", 0]
    assert run_here(*one, "--count", 3)[0] == 0
    assert Ladder.load("ladder.json").rungs[0].origin.prompts == 3
    _, _, errors = run_here(*one, "--out", "no/such", "--height", 1, "--batch", 300)
    assert errors.startswith("budcache: calibrating on all 300 prompts of texts.txt; --count 32 takes the first 32.\n")


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_dry_run_says_the_cost_of_every_strategy_without_a_model(name, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    usual = ["search", "no/such-model", "--steps", 12, "--budgets", "3,4", "-p", "a", "-p", "b", "--strategy", name]
    code, output, errors = run_here(*usual, "--dry-run", "--json")
    told = budcache.estimate(steps=12, budgets=(3, 4), prompts=2, strategy=name)
    assert (code, errors) == (0, "")
    phases = {phase.name: phase.sample_calls for phase in told.phases}
    guided = budcache.estimate(steps=12, budgets=(3, 4), prompts=2, strategy=name, guided=True).sample_calls
    said = {"sample_calls": told.sample_calls, "phases": phases, "sample_calls_with_two_branches": guided}
    assert json.loads(output) == said
    assert all(calls > 0 for calls in phases.values())
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_takes_the_options_of_the_search(run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    usual = ["search", "no/such-model", "--steps", 12, "--budgets", "3,4", "-p", "a", "-p", "b", "--dry-run"]
    code, output, errors = run_here(*usual, "--refine", "none", "--selection", 1, "--teacher-steps", 24)
    told = budcache.estimate(steps=12, budgets=(3, 4), prompts=2, refine="none", selection=1, teacher_steps=24)
    phases = ", ".join(f"{phase.name} {phase.sample_calls}" for phase in told.phases)
    says = f"search: about {told.sample_calls} sample-calls (model calls times samples): {phases}; {told.note}\n"
    assert (code, output, errors) == (0, says, "")
    assert run_here(*usual, "--budgets", 13)[0] == 2


def test_the_bar_shows_the_whole_job_and_the_time_left(monkeypatch):
    from rich.console import Console

    from budcache.cli import bar as bars

    def shown(quiet, *events):
        console = Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None)
        monkeypatch.setattr(bars, "err", console)
        with bars.Bar(quiet) as bar:
            for event in events:
                bar(event)
            bar._progress.refresh()
        return console.file.getvalue()

    planned = Planned("search", (Phase("full runs", 20), Phase("searching", 60)))
    first = Progress("search", "full runs", 20, 80, 20, 120.0)
    later = Progress("search", "searching", 40, 80, 41, 30.0, 0.0125, "3 of 8 calls")
    text = shown(False, planned, first, later)
    assert "search: about 80 sample-calls (model calls times samples): full runs 20, searching 60" in text
    assert text.count("that is about 2 min here, by the first full run") == 1
    assert "50%" in text and "3 of 8 calls, best loss 0.0125, 41 sample-calls, 30 s left" in text
    assert shown(True, planned, first, later) == "", "machines are not shown a bar"


# Into a file that is there


@pytest.fixture
def into(model, run_here, monkeypatch, tmp_path):
    """Search into one file, quickly; what was printed and what the file then holds."""
    monkeypatch.chdir(tmp_path)
    texts = ["-p", "a cat", "-p", "red"]

    def search(*more, budgets="2-4", of=model):
        usual = [
            "search",
            of,
            "--steps",
            6,
            "--budgets",
            budgets,
            *texts,
            "--strategy",
            "uniform",
            "--refine",
            "none",
            *SIZE,
        ]
        return run_here(*usual, "--selection", 1, "--out", "l.json", "--json", *more)

    return search


def test_fewer_budgets_lose_no_rungs_and_others_are_added(into):
    assert json.loads(into()[1])["all_budgets"] == [2, 3, 4]
    before = Ladder.load("l.json")
    facts = json.loads(into(budgets="3")[1])
    assert (facts["budgets"], facts["all_budgets"]) == ([3], [2, 3, 4])
    after = Ladder.load("l.json")
    assert [(rung.mask, rung.quality) for rung in after] == [(rung.mask, rung.quality) for rung in before]
    assert after[2] == before[2] and after[3].origin.calls != before[3].origin.calls
    # Other prompts and another seed are no other settings; their scores belong into another ledger.
    facts = json.loads(into("-p", "sea", "--seed", 5, "--ledger", "other.jsonl", budgets="5")[1])
    assert facts["all_budgets"] == [2, 3, 4, 5]
    assert Ladder.load("l.json")[5].origin.prompts == 3


def test_what_was_there_is_said(into, model, run_here):
    into()
    texts = ["-p", "a cat", "-p", "red", "--selection", 1]
    usual = [
        "search",
        model,
        "--steps",
        6,
        *texts,
        "--strategy",
        "uniform",
        "--refine",
        "none",
        *SIZE,
        "--out",
        "l.json",
    ]
    code, output, errors = run_here(*usual, "--budgets", 3)
    assert code == 0, errors
    assert "\nwith the rungs that were there it has 2, 3, 4 calls\n" in output
    assert "with the rungs" not in run_here(*usual, "--budgets", "2-4")[1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--guidance", 2.0], "guidance is 3.5 in one and 2.0 in the other"),
        (["--height", 48], "height is 32 in one and 48 in the other"),
        (["--steps", 7], "steps is 6 in one and 7 in the other"),
        (["--reuse", "residual"], "reuse is 'output' in one and 'residual' in the other"),
        (["--teacher-steps", 12], "teacher_steps is None in one and 12 in the other"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_another_searchs_ladder_is_not_overwritten(into, change, says, monkeypatch):
    assert into()[0] == 0
    ledger = Path("l.ledger.jsonl")
    before, kept = Path("l.json").read_bytes(), ledger.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("diffusers.FluxPipeline.__call__", never_called())
        refused = into(*change, "--ledger", "another.jsonl")
    assert wrong_with(refused, f"l.json holds a ladder that this search does not belong to: {says}") is None
    assert refused[2].endswith("Choose another --out, or replace it with --force.\n")
    assert (Path("l.json").read_bytes(), ledger.read_bytes()) == (before, kept)
    assert not Path("another.jsonl").exists()
    facts = json.loads(into(*change, "--ledger", "another.jsonl", "--force", budgets="3")[1])
    assert facts["all_budgets"] == [3] == list(Ladder.load("l.json").budgets)


def never_called():
    """A pipeline's `__call__` that must not happen, with the signature that it has."""
    from diffusers import FluxPipeline

    def call(*_, **__):
        raise AssertionError("the model was run")

    call.__signature__ = inspect.signature(FluxPipeline.__call__)
    return call


def test_another_models_ladder_is_not_overwritten(into, tmp_path):
    import torch
    from zoo import entry

    other = entry("flux").build()
    with torch.no_grad():
        next(other.transformer.parameters()).add_(0.5)
    other.save_pretrained(tmp_path / "models" / "tiny")  # of the same name
    assert into()[0] == 0
    before = Path("l.json").read_bytes()
    refused = into(of=tmp_path / "models" / "tiny")
    assert wrong_with(refused, "l.json holds a ladder that this search does not belong to: weights is ") is None
    assert Path("l.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "says"),
    [('{"kind": "ladder", "versi', "not valid JSON"), ('{"a": 1}', "no field 'version'"), ("", "not valid JSON")],
    ids=["cut", "another kind", "empty"],
)
def test_a_damaged_file_is_not_overwritten(into, content, says):
    Path("l.json").write_text(content)
    refused = into(of="no/such-model")  # not even looked for
    assert wrong_with(refused, says) is None
    assert refused[2].endswith("Choose another --out, or replace it with --force.\n")
    assert Path("l.json").read_text() == content
    assert into("--force")[0] == 0
    assert Ladder.load("l.json").budgets == (2, 3, 4)


def test_prompt_files_are_read_as_they_are_meant(tmp_path):
    from budcache.samples.prompts import read_prompts

    odd = "first\u2028still first"  # a separator that JSON allows inside a text
    (tmp_path / "a.txt").write_text("\ufeffa cat\r\n\n  red  \n", encoding="utf-8")
    (tmp_path / "a.jsonl").write_text(
        f'{{"prompt": "{odd}", "id": 1}}\n\n{{"id": 2, "prompt": "red"}}', encoding="utf-8"
    )
    (tmp_path / "a.CSV").write_text('id,caption\n1,"a ""big"" cat, sitting\non a mat"\n2,\n3,red,more\n')
    assert read_prompts(tmp_path / "a.txt") == ["a cat", "red"]
    assert read_prompts(tmp_path / "a.jsonl") == [odd, "red"]
    assert read_prompts(tmp_path / "a.CSV") == ['a "big" cat, sitting\non a mat', "red"]


MODEL, LADDER = "<model>", "<ladder>"  # stand in for files that a fixture makes


def bad_inputs():
    """Command lines that are wrong in one way, and what the sentence must say."""
    wanted = ["search", MODEL, "-p", "a", "-p", "b", "--out", "new.json", *SIZE]
    usual = [*wanted, "--steps", 6, "--budgets", 3]
    files = ["search", MODEL, "--steps", 6, "--budgets", 3, "--out", "new.json", "--prompts"]
    drawing = ["generate", MODEL, "-p", "a", *SIZE]
    yield [*wanted, "--steps", 6, "--budgets", 0], "budget of 0 does not fit 6 steps"
    yield [*wanted, "--steps", 6, "--budgets", "5-7"], "budget of 7 does not fit 6 steps"
    yield [*wanted, "--steps", 6, "--budgets", "1-9999999"], "does not fit 6 steps"
    for text in ("few", "5-2", "3,,4", "²", "-3", "1-", "9" * 5000):
        yield [*wanted, f"--budgets={text}"], "cannot be read. Write them as 8, as 5,6,8 or as 4-12"
    yield [*wanted, "--steps", 1001, "--budgets", 3], "1 to 1000 steps"
    yield [*usual, "--strategy", "magic"], "no strategy 'magic'"
    yield [*usual, "--strategy", "anneal", "--beam", 2], "--beam belongs to the ladder, not to anneal"
    yield [*usual, "--state-memory", "lots"], "memory of 'lots'"
    yield [*usual, "--state-memory=-1G"], "memory of '-1G'"
    yield [*usual, "--prompts", "good.txt"], "both given"
    yield [*usual, "--count", 3], "--count is 3, but --prompt has 2 prompts"
    yield [*files, "good.txt", "--count", 2], "--count is 2, but good.txt has 1 prompts"
    yield [*usual, "--out", "."], "is a folder"
    yield [*usual, "--out", "good.txt/new.json"], "cannot be written"
    yield [*usual[:2], *usual[6:]], "no prompts to calibrate on"
    yield [*usual[:2], *usual[4:]], "one prompt says nothing of others"
    yield [*usual, "--record", "none.record"], "there is no file none.record"
    yield ["search", "tinyflux", *usual[2:]], "did you mean tiny-flux?"
    yield ["search", "tinyflux", *usual[6:]], "did you mean tiny-flux?"
    yield ["ladder", "none.record", "--budgets", 3], "there is no file none.record"
    yield ["show", "none.record"], "there is no file none.record"
    yield [*files, "none.txt"], "none.txt cannot be read: No such file"
    yield [*files, "."], "cannot be read: Is a directory"
    yield [*files, "empty.txt"], "no prompts in empty.txt"
    yield [*files, "bad.jsonl"], "line 2 of bad.jsonl is not JSON"
    yield [*files, "deep.jsonl"], "line 1 of deep.jsonl is not JSON"
    yield [*files, "bad.csv"], "bad.csv has no column 'caption', but 'text', 'other'"
    yield [*files, "empty.csv"], "no column 'caption', but none at all"
    yield [*files, "long.csv"], "cannot be read as CSV"
    yield [*files, "latin.txt"], "not UTF-8"
    yield ["show", "none.json"], "no file none.json"
    yield ["show", "good.txt"], "not valid JSON"
    yield ["show", "."], "is a folder"
    yield ["show", "none.jsonl"], "cannot be read"
    yield ["show", "aligned.jsonl"], "ledger of an alignment, not of a search"
    yield [*drawing, "--policy", "bad.jsonl"], "is a ledger, not a policy"
    yield [*usual, "--out", os.devnull], "is a device, not a file"
    yield [*usual, "--ledger", os.devnull], "is a folder or a device, not a ledger"
    yield ["show", "bad.jsonl"], "not a ledger"
    yield ["show", LADDER, "--plot", "x.xyz"], "x.xyz cannot be drawn"
    yield ["show", LADDER, "--plot", "."], "is a folder"
    yield [*drawing, "--budget", 3], "there is no --policy"
    yield [*drawing, "--seconds", 3], "there is no --policy"
    yield [*drawing, "--policy", LADDER, "--budget", 3, "--seconds", 3], "both given"
    yield [*drawing, "--policy", LADDER, "--seconds", -3], "a time is a positive number"
    for number in ("nan", "inf", "-inf"):
        yield [*drawing, "--guidance", number], f"--guidance is {number}"
    yield [*usual, "--max-seconds", "inf"], "--max-seconds is inf"
    yield [*usual, "--guidance", "infinity"], "--guidance is inf. Give a finite number."
    yield ["compare", MODEL, "--budgets", 3, "--guidance", "nan"], "--guidance is nan. Give"
    yield ["fit", LADDER, "--guidance", "nan"], "--guidance is nan. Give a"
    yield ["align", LADDER, "--guidance", "nan"], "--guidance is nan. Give a finite"
    yield ["align", LADDER, "--rate", "nan"], "--rate is nan"
    # These are noticed only with a pipeline at hand, which takes a while to load.
    yield [*drawing, "--out", "h.mp4"], "h.mp4 is a name for a video, but the pipeline makes a picture. Use .png."
    yield [*drawing, "--out", "h.xyz"], "h.xyz ends in .xyz, which cannot be written. Use .png."
    yield [*drawing, "--policy", LADDER], "ladder of budgets 2, 3, 4"
    yield [*drawing, "--policy", LADDER, "--budget", 3, "--steps", 9], "policy has 8 steps, but --steps is 9"
    yield [*usual, "--device", "nonsense"], "cannot run on 'nonsense'"
    yield [*usual, "--frames", 5], "takes no num_frames"
    yield [*usual, "--ledger", "bad.jsonl"], "bad.jsonl is not a ledger"
    yield [*usual, "--height", 1], "the pictures are too small for this model. Choose a larger"
    yield [*usual, "--selection", 2], "2 of 2 samples for selection leave none"
    yield ["search", "no-such-model", *usual[2:]], "no model 'no-such-model'"


@pytest.fixture
def messy(tmp_path):
    """A folder of files that are wrong in one way each."""
    (tmp_path / "good.txt").write_text("a cat\n")
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": 3}\n')
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    (tmp_path / "aligned.jsonl").write_text('{"ledger": 1, "alignment": {}}\n')
    (tmp_path / "bad.csv").write_text("text,other\na,b\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "long.csv").write_text("caption\n" + "a" * 200_000 + "\n")
    (tmp_path / "latin.txt").write_bytes("café\n".encode("latin-1"))
    return tmp_path


def wrong_with(answer, says):
    """Why an answer is not one line and exit code 2, if so."""
    code, output, errors = answer
    lines = [line for line in errors.splitlines() if not line.startswith("search: about ")]  # what it will cost
    if code == 2 and output == "" and len(lines) == 1 and lines[0].startswith("budcache: ") and says in lines[0]:
        return None
    return f"exit {code}, printed {output[-200:]!r}, said {errors[-400:]!r}, should say {says!r}"


BAD_INPUTS = list(bad_inputs())
IN_PROCESSES = ("budget of 0 does not fit 6 steps", "--guidance is nan", "no model 'no-such-model'")


@pytest.fixture
def filled(model, searched):
    """A command line with the files that it names."""
    files = {MODEL: model, LADDER: searched[0] / "found.json"}
    return lambda arguments: [files.get(part, part) for part in arguments]


@pytest.mark.parametrize(("arguments", "says"), BAD_INPUTS, ids=[says for _, says in BAD_INPUTS])
def test_bad_input_earns_one_line_and_exit_code_2(arguments, says, filled, messy, run_here, monkeypatch):
    monkeypatch.chdir(messy)
    before = {path.name: path.read_bytes() for path in messy.iterdir()}
    assert wrong_with(run_here(*filled(arguments)), says) is None
    # A search that failed after it began has a ledger, which the next of the same settings goes on with.
    after = {path.name: path.read_bytes() for path in messy.glob("[!.]*") if path.name != "new.ledger.jsonl"}
    assert after == before


@pytest.mark.parametrize("says", IN_PROCESSES)
def test_bad_input_in_a_process_of_its_own(says, filled, messy):
    (arguments,) = [arguments for arguments, said in BAD_INPUTS if said == says]
    done = command(*filled(arguments), cwd=messy)
    assert wrong_with((done.returncode, done.stdout, done.stderr), says) is None


def test_a_pipeline_that_fails_is_quoted_in_one_line(model, run_here, monkeypatch, tmp_path):
    from diffusers import FluxPipeline

    def fail(*_, **__):
        raise ValueError("`height` has to be odd.\nSee the manual.")

    fail.__signature__ = inspect.signature(FluxPipeline.__call__)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FluxPipeline, "__call__", fail)
    says = "FluxPipeline failed: `height` has to be odd."
    usual = [model, "-p", "a", "-p", "b", "--steps", 6]
    assert wrong_with(run_here("search", *usual, "--budgets", 3, "--out", "x.json"), says) is None
    code, _, errors = run_here("generate", *usual, "--out", "x.png")
    assert (code, errors.splitlines()[-1]) == (2, f"budcache: {says}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["search"],
        ["search", "x", "--budgets", "3", "--steps", "0"],
        ["search", "x", "--budgets", "3", "--reuse", "all"],
        ["show", "x", "--nonsense"],
        ["generate", "x"],
        ["generate", "x", "-p", "a", "--strength", "nan"],
        ["search", "x", "--budgets", "3", "--max-seconds", "-inf"],
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_understood(arguments, run_here):
    """Answered by the command-line library, with its usage."""
    code, _, errors = run_here(*arguments)
    assert code == 2
    assert "Usage: budcache" in errors
    assert "Traceback" not in errors


# The command, ended by a signal as soon as its ledger has so many lines.
ENDING = """
import os, signal, sys
how, lines = signal.Signals[sys.argv.pop(1)], int(sys.argv.pop(1))
from budcache.storage.journal import Journal
write = Journal.write

def writing(journal, entry):
    write(journal, entry)
    if journal.path.read_bytes().count(b"\\n") == 1 + lines:
        os.kill(os.getpid(), how)

Journal.write = writing
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
from budcache.cli import main
main()
"""


def ended(command, cwd, lines, how):
    """How a command ended that a signal met behind some lines of its ledger: code, output and errors."""
    done = subprocess.run(
        [sys.executable, "-c", ENDING, how.name, str(lines), *map(str, command)],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
def test_a_search_ended_again_and_again_ends_the_same(model, searched, tmp_path, run_here, monkeypatch):
    """Interrupted in the plain climb, killed in the fitted one and when all was scored and only judging was left."""
    out, ledger, command = tmp_path / "found.json", tmp_path / "found.ledger.jsonl", search_command(model, "found.json")
    undisturbed = read_history(searched[0] / "found.ledger.jsonl")
    kept = b""
    for lines, how in ((5, signal.SIGINT), (MASKS + 4, signal.SIGKILL), (len(undisturbed), signal.SIGKILL)):
        code, output, errors = ended(command, tmp_path, lines, how)
        if how is signal.SIGINT:
            assert (code, output) == (130, "")
            assert errors.splitlines()[-1].startswith("budcache: stopped. What was finished is kept")
            assert "Traceback" not in errors
        else:
            assert (code, output) == (-signal.SIGKILL, "")
        assert ledger.read_bytes().startswith(kept), "what was scored was lost"
        kept = ledger.read_bytes()
        # The one that was interrupted could still say what it had spent.
        assert len(read_history(ledger)) == lines
        assert not out.exists()
    monkeypatch.chdir(tmp_path)
    code, output, errors = run_here(*command)
    assert code == 0, errors
    assert " of them in runs before this one)" in output
    assert ledger.read_bytes().startswith(kept), "what was scored was scored again"
    assert essence(out) == essence(searched[0] / "found.json")
    assert [(s.mask, s.loss, s.phase) for s in read_history(ledger)] == [(s.mask, s.loss, s.phase) for s in undisturbed]


def test_the_default_search_takes_paths_and_goes_on_where_it_was(model, run_here, monkeypatch, tmp_path):
    """Candidates from the full runs, each scored once; a second run scores none again."""
    monkeypatch.chdir(tmp_path)
    usual = ["search", model, "--steps", 16, "--budgets", "3,5", "-p", "a", "-p", "two dogs", *SIZE, "--out", "p.json"]
    code, output, errors = run_here(*usual)
    assert code == 0, errors
    ladder, before = Ladder.load("p.json"), essence("p.json")
    assert {rung.origin.strategy for rung in ladder} == {"paths"}
    assert all(rung.is_blended and rung.quality.used_to_fit and rung.quality.samples == 2 for rung in ladder)
    assert "on new prompts expect 4 to 6 dB less" in " ".join(output.split())
    history = read_history("p.ledger.jsonl")
    assert {step.phase for step in history} == {"paths, fitted"}
    code, output, errors = run_here(*usual, "--force")
    assert code == 0, errors
    assert f"going on with {len(history)} scores of an earlier run, full runs are made again" in errors
    assert essence("p.json") == before
    assert [step.mask for step in read_history("p.ledger.jsonl")] == [step.mask for step in history]
    assert Ladder.load("p.json").rungs[0].origin.calls == ladder.rungs[0].origin.calls + 2 * 16


def test_a_limit_on_calls_says_how_many_prompts_it_pays_for(run_here):
    usual = ["search", "tiny-flux", "--budgets", "5,6,8,10", "--max-calls", 600, "--dry-run"]
    code, output, errors = run_here(*usual)
    assert (code, errors) == (0, "7 of 32 prompts, which is what --max-calls pays for; --count takes another number\n")
    assert "full runs 196" in output
    code, output, errors = run_here(*usual, "--count", 16)
    assert (code, errors) == (0, "")
    assert "searching 264" in output, "12 of them are searched on, and their full runs take 336"


def test_plain_paths_of_few_prompts_say_that_nothing_was_kept_out(model, run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    usual = ["search", model, "--steps", 6, "--budgets", 3, "-p", "a", "-p", "two dogs", *SIZE, "--out", "p.json"]
    code, output, errors = run_here(*usual, "--refine", "none")
    assert code == 0, errors
    assert Ladder.load("p.json")[3].weights is None
    assert "on 2 samples that the search was made on" in " ".join(output.split())
    assert "not searched on" not in output


def test_a_record_becomes_a_ladder_on_the_command_line(model, run_here, monkeypatch, tmp_path):
    from budcache.models import load

    monkeypatch.chdir(tmp_path)
    pipe = load(model)
    pipe.set_progress_bar_config(disable=True)
    with budcache.recording(pipe) as record:
        for text in ("a cat", "two dogs"):
            pipe(text, height=32, width=32, num_inference_steps=8)
    record.save("runs.record")
    code, output, errors = run_here("show", "runs.record")
    assert (code, errors) == (0, "")
    assert "2 runs of 8 steps: " in output
    assert json.loads(run_here("show", "runs.record", "--json")[1])[0]["runs"] == 2
    code, output, errors = run_here("ladder", "runs.record", "--budgets", "2-4", "--out", "l.json")
    assert (code, errors) == (0, "")
    assert Ladder.load("l.json") == record.ladder([2, 3, 4])
    assert "l.json  from 2 runs of 8 steps: " in output
    assert "not yet tried on the model" in output
    code, output, errors = run_here("ladder", "runs.record", "-b", 3, "--steps", 12, "--out", "l12.json")
    assert "carried over from 8 to 12 steps" in output
    assert "--steps 12 --budgets 3 --prompts" in output, "a search is offered"
    assert Ladder.load("l12.json").steps == 12
    usual = ["search", model, "--budgets", 3, "-p", "a", "-p", "b", *SIZE, "--out", "s.json", "--record", "runs.record"]
    assert run_here(*usual, "--steps", 8)[0] == 0
    code, _, errors = run_here(*usual, "--steps", 9)
    assert code == 2
    assert "no runs of 9 steps: it has 2 runs of 8 steps" in errors
    assert "is for paths" in run_here(*usual, "--steps", 8, "--strategy", "ladder")[2]


def test_a_ladder_from_a_record_spoils_no_other_ladder(run_here, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    grams = Calibration([Toy(i, steps=8) for i in range(2)], record=True).grams
    origins = [Origin(model="toy", guidance=guidance) for guidance in (3.5, 5.0)]
    Record([Runs(origins[0], grams), Runs(origins[1], grams + grams)]).save("runs.bin")
    assert "6 runs of 8 steps in 2 kinds" in run_here("show", "runs.bin")[1], "known by what is in it"
    run = ["ladder", "runs.bin", "--out", "l.json", "--kind", 1, "--budgets"]
    assert run_here(*run, "2,3")[0] == 0
    code, output, _ = run_here(*run, 4)
    assert (code, Ladder.load("l.json").budgets) == (0, (2, 3, 4))
    assert "with the rungs that were there it has 2, 3, 4 calls" in output
    before = Path("l.json").read_bytes()
    for refused, says in (
        (["ladder", "runs.bin", "--out", "l.json", "-b", 5], "guidance is 3.5 in one and 5.0"),
        ([*run, 4, "--steps", 9], "steps is 8 in one and 9"),
        ([*run, 4, "--kind", 3], "no kind 3 of runs: it has 2"),
    ):
        code, _, errors = run_here(*refused)
        assert code == 2
        assert says in errors
    tried = Ladder.load("l.json").rungs[1].model_copy(update={"quality": Quality(psnr=40.0)})
    Ladder.of([tried]).save("t.json")
    code, _, errors = run_here(*run[:3], "t.json", *run[4:], "2,3")
    assert code == 2
    assert "t.json has policies of 3 calls that were tried on the model" in errors
    assert Path("l.json").read_bytes() == before
    code, output, _ = run_here("ladder", "runs.bin", "--out", "t.json", "--force", "-b", 3)
    assert code == 0
    assert "from 4 runs of 8 steps" in output
    assert "2 runs of another kind left out" in output
