"""The paper's experiments at the smallest size: each ends well, keeps its results, and judges claims by its numbers."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2] / "benchmarks" / "paper"
QUICK = ("convergence",)
LONG = ("few_steps", "transfer", "video_settings", "main_table", "low_budget", "prompt_set", "published_masks")
LONG += ("model_size", "intensity", "steps", "video_table", "tails", "luck")
SCRIPTS = (*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG))
pytestmark = pytest.mark.xdist_group("paper")  # what one experiment has searched, others take


@pytest.fixture(scope="module")
def paper():
    """A script's module by its name."""
    sys.path.insert(0, str(HOME))
    yield importlib.import_module
    sys.path.remove(str(HOME))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A tiny pipeline with prompts beside it, and a place for results."""
    from loras import random_lora
    from zoo import entry

    home, pipe = tmp_path_factory.mktemp("paper"), entry("flux").build()
    pipe.save_pretrained(home / "tiny")
    random_lora(home / "turbo.safetensors", pipe)
    entry("wan-t2v-euler").build().save_pretrained(home / "tiny-wan")
    (home / "prompts.txt").write_text("\n".join(f"prompt {number}" for number in range(12)))
    return home


@pytest.fixture
def run(paper, home, capsys):
    """Run a script; returns its JSON line and what it told whoever waits."""

    def run(name, *more, model="tiny", size=32):
        folder = home / ("out" if model == "tiny" else f"out-{model}") / name
        options = ["--quick", "--model", home / model, "--prompts", home / "prompts.txt", "--height", size]
        options += ["--width", size, "--steps", 5, "--budgets", 2, "--evaluation", 1, "--threads", 1, "--timed", "none"]
        options += ["--folder", folder, *more]
        options += ["--target", home / "tiny"] if name == "model_size" else []
        options += ["--lora", home / "turbo.safetensors"] if name == "few_steps" else []
        capsys.readouterr()
        paper(name).main(list(map(str, options)))
        out, told = capsys.readouterr()
        return json.loads(out.splitlines()[-1]), told

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_experiment_ends_well_and_keeps_its_result(name, run, home):
    result, _ = run(name)
    assert result["experiment"] == name
    assert result["quick"]
    assert result["claims"]
    for table in result["tables"]:
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    if name == "main_table":
        made = {row[0]: row[2] for row in result["tables"][1]["rows"]}
        assert made["budcache"] == 4 and made["published search"] == 2, "what ours was made on is told, too"
    kept = home / "out" / name
    written = json.loads((kept / "result.json").read_text())
    values = written.pop("values", None)  # of every prompt: kept, and too many for a line that people see
    assert written == result and (values is not None) == (name == "main_table")
    assert all((kept / figure).stat().st_size > 0 for figure in result["figures"])


@pytest.mark.slow
def test_the_distilled_model_stands_beside_the_plain_one(run, paper):
    result, _ = run("few_steps")
    assert result["adapters"][0].startswith("turbo (")
    _, worth, crosswise = result["tables"]
    assert [row[1] for row in worth["rows"]] == [8, 5, 2, 2, 5, 2, 2]
    assert worth["rows"][0][2] is None and all(row[2] for row in worth["rows"][1:])  # it is 0 from itself
    pairs = [(row[1], row[2]) for row in crosswise["rows"]]
    assert pairs == 2 * [(s, t) for t in ("plain", "distilled") for s in ("plain", "distilled")]
    (theirs,) = {row[2] for row in result["tables"][0]["rows"] if row[0] == "the paper's"}
    assert theirs == "not given", "the paper's figures stand beside no budget that it does not name"


def test_all_rivals_count_and_not_only_the_best_by_its_mean(paper):
    """One that is far behind on average, but by chance, leaves it undecided; one that is ahead decides."""
    from budcache.comparison import Lead

    of_all = paper("telling").of_all
    near, unsure, behind = Lead(1.0, 0.1), Lead(3.0, 2.0), Lead(-1.0, 0.1)
    assert of_all([near]) is True and of_all([near], least=2.0) is False
    assert of_all([near, unsure]) is None
    assert of_all([near, unsure, behind]) is False


def test_one_picture_more_or_less_decides_nothing(paper):
    paired = paper("telling").paired
    found = paired([1.0] * 59 + [0.0] * 5, [1.0] * 60 + [0.0] * 4)
    assert found.mean < 0 and found.ahead is None


def test_a_speed_up_is_judged_with_its_interval(paper):
    from budcache.comparison.timing import Speed

    at_least = paper("main_table").at_least
    assert at_least(Speed(3.0, 2.9, 3.1, False, 20), 2.8) is True
    assert at_least(Speed(3.0, 2.9, 3.1, False, 20), 3.05) is None
    assert at_least(Speed(3.0, 2.9, 3.1, False, 20), 3.2) is False
    assert at_least(Speed(3.0, 2.9, 3.1, True, 20), 2.8) is None


def test_alignments_that_gained_nothing_say_nothing(paper):
    claim = paper("low_budget").limited({"5 calls": [0.0, 0.0]}, [0.0, 0.0], 10)
    assert claim.verdict == "undecided"


def test_claims_are_counted_by_their_verdicts(paper):
    verdicts = [
        "holds",
        "holds in 1 of 2 cases, not in: b",
        "does not hold",
        "does not hold",
        "does not hold where it is decided, undecided in: c",
        "undecided",
    ]
    claims = [{"verdict": verdict} for verdict in [*verdicts, "could not be tested"]]
    assert paper("collect").counts(claims) == (1, 1, 2, 1, 1, 1)


def test_claims_are_told_apart_by_who_makes_them_and_of_what(paper):
    collect = paper("collect")
    whose = [
        collect.whose({"source": source, "text": text})
        for source, text in (
            ("Table 1", "the published search is better"),
            ("Table 1", "budcache is better"),
            ("ours", "the published search is behind"),
            (paper("telling").GOAL, "budcache is ahead"),
        )
    ]
    assert whose == [*collect.KINDS, collect.KINDS[2]]


def test_what_the_paper_says_and_nobody_can_test_here_is_counted(paper):
    collect = paper("collect")
    result = {"experiment": "main_table", "claims": [{"source": "ours", "text": "a", "verdict": "holds", "found": ""}]}
    *_, untested = collect.counts(collect.claims_of(result))
    assert untested == len(paper("reasons").UNTESTED["main_table"]) > 0


def test_columns_of_times_are_left_out_where_nobody_was_timed(paper):
    table = {"title": "", "columns": ["method", "loop s", "speed-up", "PSNR"], "rows": [["a", "0.1", "not timed", "3"]]}
    timed = paper("collect").timed
    assert (timed(table)["columns"], timed(table)["rows"]) == (["method", "PSNR"], [["a", "3"]])
    those = [["b", "0.2", "2.00x (1.95-2.05)", "4"], ["c", "0.1", "≤2.80x (2.70-2.80)", "5"]]
    known = {**table, "rows": [*table["rows"], *those]}
    assert timed(known)["rows"] == [["a", "-", "not timed", "3"], *those]


def test_figures_of_videos_stand_beside_the_budget_that_they_are_of(paper):
    beside, elsewhere = paper("published").wan([10, 15, 20])
    assert {case: list(those) for case, those in beside.items()} == {"20 calls": ["authors"]}
    assert {calls: list(those) for calls, those in elsewhere.items()} == {"about 26": ["teacache"]}


def test_emoji_are_recognised(paper):
    """Every one of the sheet, either way round; and none of them in plain grey."""
    few, common = paper("few_steps"), paper("common")
    lab = common.Lab("few_steps", "", ["--threads", "1"])
    prompts, (names, known) = few.recognisable(lab)
    assert len(prompts) == len(lab.evaluation) and not set(prompts) & set(lab.learned)
    pair = few.Pair.__new__(few.Pair)
    pair.prompts, pair.emoji = names, (names, known)
    large = known.repeat(4, 1).repeat(4, 2)
    assert all(pair.recognised(list(large))) and all(pair.recognised(list(large[:, :, ::-1])))
    assert sum(pair.recognised([0 * large[0] + 0.5] * len(names))) <= 1


def test_a_second_run_searches_nothing_again(run):
    first, _ = run("convergence")
    second, told = run("convergence")
    assert {**second, "made": ""} == {**first, "made": ""}
    assert "searching" not in told


def test_the_page_leaves_smoke_runs_out_unless_asked(run, paper, home, tmp_path):
    run("convergence")
    page, kept = tmp_path / "results.md", tmp_path / "kept"
    options = ["--folder", str(home / "out"), "--kept", str(kept), "--out", str(page)]
    paper("collect").main(options)
    assert "Not run yet: `python benchmarks/paper/convergence.py`" in page.read_text()
    paper("collect").main([*options, "--quick"])
    assert "Annealing as printed lowers the loss" in page.read_text()
    assert (tmp_path / "images" / "paper-convergence.png").exists()
    assert not kept.exists(), "smoke runs are never kept"


def test_the_kept_results_give_the_page(paper, tmp_path):
    """Without any run at hand: results outlive the machine that they were measured on."""
    before = {file.name: file.read_text() for file in (HOME / "results").glob("*.json")}
    paper("collect").main(["--folder", str(tmp_path / "nothing"), "--out", str(tmp_path / "results.md")])
    assert (tmp_path / "results.md").read_text() == (HOME.parents[1] / "docs" / "results.md").read_text()
    assert {file.name: file.read_text() for file in (HOME / "results").glob("*.json")} == before
    images = HOME.parents[1] / "docs" / "images"
    figures = [figure for text in before.values() for figure in json.loads(text)["figures"]]
    assert figures and all((images / f"paper-{figure}").exists() for figure in figures)


def test_the_main_table_can_be_worked_out_again_from_what_is_kept_of_every_prompt():
    kept = json.loads((HOME / "results" / "main_table.json").read_text())
    table, values = kept["tables"][0], kept["values"]["psnr"]
    budget, method, psnr = (table["columns"].index(name) for name in ("budget", "method", "PSNR ± error"))
    for row in table["rows"]:
        each = values[row[budget].split()[0]][row[method]]
        assert len(each) == kept["prompts"]["measured on"]
        assert float(row[psnr].split(" ± ")[0]) == pytest.approx(sum(each) / len(each), abs=0.011)


def test_what_does_not_hold_has_its_reason(paper):
    kept = [json.loads(file.read_text()) for file in (HOME / "results").glob("*.json")]
    claims = [(result["experiment"], claim) for result in kept for claim in result["claims"]]
    assert len(claims) > 40
    for experiment, claim in claims:
        assert claim["verdict"] == "holds" or paper("reasons").why(experiment, claim["text"]), (
            experiment,
            claim["text"],
        )
    line = paper("collect").line
    held, broken = (
        {"text": "With 8 calls the published search is better", "source": "Table 1", "verdict": verdict, "found": ""}
        for verdict in ("holds", "undecided")
    )
    assert "Why" not in line(held, "main_table")
    assert "**undecided**. Why: it chooses by two prompts" in line(broken, "main_table")


def test_the_newest_result_is_kept_as_it_is_printed(paper, tmp_path):
    claim = {"source": "Table 1", "text": "It is so", "cases": {"a": True}, "verdict": "holds", "found": ""}
    result = {"experiment": "steps", "about": "K.", "quick": False, "model": "m", "call": {}, "notes": ["A | B."]}
    result |= {"prompts": {"measured on": 2}, "claims": [claim], "figures": [], "made": "2026-11-17T10:00:00+00:00"}
    file, kept = tmp_path / "out" / "steps" / "result.json", tmp_path / "kept" / "steps.json"
    file.parent.mkdir(parents=True)

    def collected(made, value):
        table = {"title": "T", "columns": ["K", "PSNR"], "rows": [["7.4 | 8.6", value], ["[1,  2]", None]]}
        file.write_text(json.dumps({**result, "made": made, "tables": [table]}))
        options = ["--folder", tmp_path / "out", "--kept", tmp_path / "kept", "--out", tmp_path / "page.md"]
        paper("collect").main(list(map(str, options)))
        return (tmp_path / "page.md").read_text()

    first = collected("2026-11-17T10:00:00+00:00", 33.123456)
    assert "| 7.4 \\| 8.6 | 33.12 |\n| [1,  2] | - |" in first
    assert json.loads(kept.read_text())["tables"][0]["rows"] == [["7.4 | 8.6", "33.12"], ["[1,  2]", "-"]]
    assert '    ["7.4 | 8.6", "33.12"],' in kept.read_text().splitlines()
    assert collected("2026-11-16T10:00:00+00:00", 20.0) == first, "what is older does not replace it"
    assert "44.00" in collected("2026-11-18T10:00:00+00:00", 44.0)
    shutil.rmtree(file.parent)
    paper("collect").main(["--folder", str(tmp_path), "--kept", str(kept.parent), "--out", str(tmp_path / "page.md")])
    assert "44.00" in (tmp_path / "page.md").read_text()


@pytest.mark.slow
def test_a_policy_for_videos_is_carried_over_too(run):
    result, _ = run("transfer", "--frames", 5, model="tiny-wan", size=64)
    settings = {row[0] for row in result["tables"][0]["rows"]}
    assert {"iPNDM(2M)", "half the size", "three quarters of the height", "guidance 7"} <= settings


@pytest.mark.parametrize(
    ("name", "call", "expected"),
    [
        ("wan-t2v", {}, (480, 832, 16)),  # as the pipeline's own call has it
        ("wan-t2v", {"height": 64}, (64, 832, 16)),
        ("flux", {}, (256, 256, 4)),  # 128 latents of 2 pixels each
        ("flux", {"height": 32, "width": 48}, (32, 48, 4)),
    ],
)
def test_sizes_are_found_on_pictures_and_videos(paper, name, call, expected):
    from zoo import entry

    assert paper("transfer").size(entry(name).build(), call) == expected


def test_alignment_takes_all_the_prompts_that_it_asks_for(paper, home):
    """More than the search learns on, and none of those that are measured on."""
    low = paper("low_budget")
    files = [home / "many.txt", home / "others.txt"]
    for file in files:
        file.write_text("\n".join(f"{file.stem} {number}" for number in range(60)))
    options = ["--model", home / "tiny", "--threads", 1, "--learn", 6, "--prompts", files[0]]

    def lab(*more):
        return paper("common").Lab("low_budget", "", list(map(str, [*options, *more])), more=low.options)

    for more, known in ((["--align", 15], 15), (["--align", 100], 20), (["--calibration", files[1]], 60)):
        found = lab(*more)
        assert len(found.learned) == known
        assert found.calibration == found.learned[:6]
        assert not set(found.learned) & set(found.evaluation)


@pytest.mark.slow
def test_too_few_prompts_to_align_on_are_said(run):
    result, told = run("low_budget", "--align", 9)
    assert "Aligned on 4 prompts, not on 9" in told
    assert any("Aligned on 4 prompts, not on 9" in note for note in result["notes"])


def test_the_papers_claims_are_judged_where_it_prints_figures(paper):
    main, printed = paper("main_table"), paper("published").MAIN
    cases = {f"{budget} calls": (None, budget) for budget in (5, 6, 8, 9, 10)}
    assert list(main.told(cases, printed)) == ["8 calls", "9 calls", "10 calls"]
    own = {f"{budget} calls": (None, budget) for budget in (3, 4)}
    assert main.told(own, printed) == own


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ({"a": True, "b": True}, "holds"),
        ({"a": False}, "does not hold"),
        ({"a": True, "b": False}, "holds in 1 of 2 cases, not in: b"),
        ({}, "could not be tested"),
        ({"a": None}, "undecided"),
        ({"a": True, "b": None}, "holds in 1 of 2 cases, undecided in: b"),
        ({"a": True, "b": False, "c": None}, "holds in 1 of 3 cases, not in: b, undecided in: c"),
        ({"a": False, "b": None}, "does not hold where it is decided, undecided in: b"),
    ],
)
def test_a_claim_is_judged_by_its_cases(paper, cases, verdict):
    assert paper("telling").Claim("Table 1", "Something", cases).verdict == verdict


def test_ipndm_as_a_scheduler_is_the_solver():
    import torch

    from budcache.baselines.fewer import IPNDM2
    from budcache.numerics.solvers import ipndm2

    scheduler = IPNDM2(shift=3.0)
    for _ in range(2):  # the past of one run is not the next one's
        scheduler.set_timesteps(5)
        sigmas, past = scheduler.sigmas, None
        x = y = torch.ones(1, 3)
        for k, t in enumerate(scheduler.timesteps):
            v = torch.full_like(x, float(k + 1))
            x = scheduler.step(v, t, x, return_dict=False)[0]
            y, past = ipndm2(y, v, sigmas[k], sigmas[k + 1], past)
        assert torch.allclose(x, y, atol=1e-6)


def test_make_bench_runs_the_benchmarks_that_the_readme_lists():
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    root = HOME.parents[1]
    command = ["make", "-n", "bench", "OPTIONS=--threads 1"]
    plan = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    names = re.search(r"for name in ([\w ]+);", plan)
    listed = re.findall(r"^\| `(\w+)\.py` \|", (root / "benchmarks" / "README.md").read_text(), re.MULTILINE)
    assert names is not None and names[1].split() == listed[:3]  # "the first three"
    assert "--threads 1" in plan
