"""`budcache fit` and `budcache align`, on the embedded model; and what `search` and `show` say about refinement."""

from __future__ import annotations

import json

import pytest

import budcache
from budcache import Ladder, Origin, Policy, models
from budcache.strategies import read_history

MASKS = ("10010000", "11010100")
TEXTS = models.prompts("tiny-flux", "calibration")[:4]
PROMPTS = [part for text in TEXTS for part in ("-p", text)]
ONE_FIT = ["--outputs", "2", "--ridges", "1e-3"]  # where it does not matter what is chosen from
PNG = b"\x89PNG"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where the commands run: a ladder of two plain masks, and files that are wrong in one way each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    rungs = [Policy(mask=mask, origin=Origin(model="tiny-flux")) for mask in MASKS]
    Ladder.of(rungs).save("plain.json")
    Policy(mask=MASKS[0]).save("nameless.json")
    Policy(mask=MASKS[0], reuse="residual", origin=Origin(model="tiny-flux")).save("residual.json")
    (tmp_path / "notes.txt").write_text("not a ledger\n")
    return tmp_path


@pytest.fixture(scope="module")
def pipe():
    return models.load("tiny-flux")


def worked(answer):
    code, output, errors = answer
    assert code == 0, errors
    return output, errors


def beside(errors, job):
    """What was said beside the result, behind what the job will cost and how long that is."""
    cost, time, *rest = errors.splitlines()
    assert cost.startswith(f"{job}: about ") and " sample-calls (model calls times samples): full runs " in cost
    assert time.startswith("that is about ") and time.endswith(" here, by the first full run")
    return rest


def one_line(text):
    """What was printed, without the line breaks of a narrow terminal."""
    return " ".join(text.split())


def test_fit_writes_a_ladder_with_weights_and_says_what_they_are_worth(folder, pipe, run_here):
    output, errors = worked(run_here("fit", "plain.json", *PROMPTS, "--plot", "weights.png"))
    fitted = Ladder.load("plain.fit.json")
    assert fitted == budcache.fit(pipe, Ladder.load("plain.json"), prompts=TEXTS)
    assert all(rung.is_blended for rung in fitted) and fitted[2].refined[0].gain > 1  # a model that was trained
    assert beside(errors, "fit") == ["drawn to weights.png"]
    assert (folder / "weights.png").read_bytes().startswith(PNG)
    lines = output.splitlines()
    assert lines[0] == "ladder of 2 rungs, 8 steps"
    for rung in fitted:
        line, done = [line for line in lines if line.split()[:1] == [str(rung.budget)]]
        gain, psnr = f"{rung.refined[0].gain:+.1f}", f"{rung.quality.psnr:.1f}"
        assert rung.reuse_text in line and gain in line.split() and psnr in line.split()
        assert done.split() == [str(rung.budget), "fit", "4", str(rung.refined[0].calls), gain, "dB"]
    assert "PSNR in decibels to the run of 8 steps: mean on 1 sample not searched on" in one_line(output)
    assert lines[-1].startswith("plain.fit.json  ")
    # `show` knows the same from the file alone, and draws masks and weights.
    shown, _ = worked(run_here("show", "plain.fit.json", "--plot", "deep/shown.png"))
    assert output.startswith(shown.rstrip())
    assert (folder / "deep" / "shown.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_fit_takes_one_rung_and_other_settings_and_tells_machines(folder, pipe, run_here):
    own = ["--budget", 4, "--out", "one.json", "--outputs", "2", "--ridges", "0.01", "--selection", 2, "--seed", 7]
    output, errors = worked(run_here("fit", "plain.json", *PROMPTS, *own, "--teacher-steps", 16, "--json"))
    facts = json.loads(output)
    rung = Ladder.load("one.json").rungs[0]
    assert errors == ""
    assert (facts["ladder"], facts["gain"]) == ("one.json", {"4": rung.refined[0].gain})
    settings = {"outputs": [2], "ridges": [0.01], "selection": 2, "seed": 7, "teacher_steps": 16}
    assert Ladder.of([rung]) == budcache.fit(
        pipe, Policy(mask=MASKS[1], origin=Origin(model="tiny-flux")), prompts=TEXTS, **settings
    )
    shown, _ = worked(run_here("show", "one.json"))
    assert "PSNR in decibels to the run of 16 steps: mean and standard error on 2 samples not searched on" in one_line(
        shown
    )


@pytest.mark.slow
def test_align_writes_levels_and_a_ledger_that_it_goes_on_with(folder, pipe, run_here):
    command = ["align", "plain.json", *PROMPTS, "--budget", 2, "--rate", 0.01, "--every", 1, "--plot", "aligned.png"]
    output, errors = worked(run_here(*command))
    aligned = Ladder.load("plain.align.json").rungs[0]
    start = Policy(mask=MASKS[0], origin=Origin(model="tiny-flux"))
    assert Ladder.of([aligned]) == budcache.align(pipe, start, prompts=TEXTS, rate=0.01, every=1)
    assert aligned.sigmas is not None and aligned.refined[0].gain > 0  # as this one was trained
    assert beside(errors, "align") == ["drawn to aligned.png"]
    assert (folder / "aligned.png").read_bytes().startswith(PNG)
    assert "own" in output  # levels
    assert f"2 align 4 {aligned.refined[0].calls} {aligned.refined[0].gain:+.1f} dB" in one_line(output)
    kept = (folder / "plain.align.ledger.jsonl").read_bytes()
    assert kept.count(b"\n") == 1 + 3
    output, _ = worked(run_here(*command, "--json"))
    assert json.loads(output)["gain"] == {"2": aligned.refined[0].gain}
    again = Ladder.load("plain.align.json").rungs[0]
    assert (again.sigmas, again.quality) == (aligned.sigmas, aligned.quality)
    assert (folder / "plain.align.ledger.jsonl").read_bytes() == kept


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["fit", "align"])
def test_rungs_that_were_refined_before_stay_in_the_file(verb, folder, run_here):
    usual = [verb, "plain.json", *PROMPTS, *(ONE_FIT if verb == "fit" else [])]
    worked(run_here(*usual, "--budget", 2, "--ledger", "first.jsonl") if verb == "align" else run_here(*usual, "-b", 2))
    (first,) = Ladder.load(f"plain.{verb}.json")
    output, _ = worked(run_here(*usual, "--budget", 4))
    assert output.endswith("with the rungs that were there it has 2, 4 calls\n")
    both = Ladder.load(f"plain.{verb}.json")
    assert both.budgets == (2, 4) and both[2] == first and both[4].refined
    output, _ = worked(run_here(*usual, "--budget", 4, "--json"))
    facts = json.loads(output)
    assert (list(facts["gain"]), facts["all_budgets"]) == (["4"], [2, 4])
    # Told to, it replaces what is there.
    worked(run_here(*usual, "--budget", 4, "--force"))
    assert Ladder.load(f"plain.{verb}.json").budgets == (4,)


def test_a_policy_alone_stays_one_and_goes_into_a_ladder_where_one_is(folder, run_here):
    Ladder.load("plain.json")[2].save("one.json")
    for _ in range(2):
        worked(run_here("fit", "one.json", *PROMPTS, *ONE_FIT))
        assert Policy.load("one.fit.json").is_blended
    worked(run_here("fit", "one.json", *PROMPTS, *ONE_FIT, "--out", "plain.json"))
    both = Ladder.load("plain.json")
    assert both.budgets == (2, 4) and both[2].is_blended and not both[4].is_blended


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["fit", "align"])
@pytest.mark.parametrize(
    ("there", "says"),
    [
        (Origin(model="another"), "model is 'another' in one and 'tiny-flux' in the other"),
        (Origin(model="tiny-flux", teacher_steps=16), "teacher_steps is 16 in one and None in the other"),
        (None, "not valid JSON"),
    ],
    ids=["model", "teacher", "damaged"],
)
def test_what_the_rungs_do_not_belong_to_is_not_overwritten(verb, there, says, folder, run_here, monkeypatch):
    file = folder / f"plain.{verb}.json"
    file.write_text("half a lad") if there is None else Policy(mask=MASKS[0], origin=there).save(file)
    before = file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(f"budcache.cli.{verb}.{verb}_policies", None)  # not called
        code, output, errors = run_here(verb, "plain.json", *PROMPTS, "--budget", 4)
    assert (code, output) == (2, "") and says in errors
    assert errors.endswith("Choose another --out, or replace it with --force.\n") and errors.count("\n") == 1
    assert file.read_bytes() == before
    worked(run_here(verb, "plain.json", *PROMPTS, *(ONE_FIT if verb == "fit" else []), "--budget", 4, "--force"))
    assert Ladder.load(file).budgets == (4,)


def test_a_short_schedule_written_by_hand_is_aligned(folder, run_here):
    (folder / "short.json").write_text('{"kind": "policy", "version": 1, "mask": "111"}')
    usual = ["--model", "tiny-flux", "--teacher-steps", 9, "--objective", "pixel", "--height", 32, "--width", 32]
    output, _ = worked(run_here("align", "short.json", *PROMPTS[:4], *usual, "--autocast", "bfloat16"))
    assert "to the run of 9 steps" in one_line(output)
    assert Policy.load("short.align.json").origin.teacher_steps == 9


@pytest.mark.slow
def test_search_fits_unless_it_is_told_not_to(folder, run_here):
    usual = ["search", "tiny-flux", "--steps", 6, "--budgets", 2, *PROMPTS, "--selection", 1, "--strategy", "ladder"]
    output, _ = worked(run_here(*usual, "--out", "masks.json", "--refine", "none"))
    assert all(not rung.is_blended and rung.refined == () for rung in Ladder.load("masks.json"))
    assert "blend" not in output and "refined by" not in output
    assert "PSNR in decibels to the run of 6 steps: mean on 1 sample" in one_line(output)
    output, _ = worked(run_here(*usual, "--out", "fitted.json", "--teacher-steps", 12))
    assert all(rung.is_blended for rung in Ladder.load("fitted.json"))
    assert "blend" in output and "2 fit 4 " in one_line(output)
    assert "PSNR in decibels to the run of 12 steps" in one_line(output)
    # A limit that only the second climb meets is said, too.
    masks = len(read_history(folder / "masks.ledger.jsonl"))
    output, _ = worked(run_here(*usual, "--out", "cut.json", "--max-evaluations", masks + 2, "--json"))
    assert json.loads(output)["stopped"] == f"evaluations limit of {masks + 2}"
    phases = {step.phase for step in read_history(folder / "fitted.ledger.jsonl")}
    assert phases == {"ladder", "ladder, fitted"}  # where the climb starts has been scored by then


@pytest.mark.parametrize("verb", ["fit", "align"])
def test_a_dry_run_says_the_cost_and_stops(verb, folder, run_here):
    """Close to what it then takes."""
    before = sorted(path.name for path in folder.iterdir())
    command = [verb, "plain.json", *PROMPTS, "--budget", 2]
    output, errors = worked(run_here(*command, "--dry-run", "--json"))
    told = json.loads(output)
    assert errors == "" and told["sample_calls"] == sum(told["phases"].values())
    said, errors = worked(run_here(*command, "--dry-run"))
    assert errors == "" and said.startswith(f"{verb}: about {told['sample_calls']} sample-calls")
    assert sorted(path.name for path in folder.iterdir()) == before
    worked(run_here(*command, "--json"))
    (line,) = Ladder.load(f"plain.{verb}.json")[2].refined
    assert told["sample_calls"] == pytest.approx(line.calls, rel=0.25)


def bad_inputs():
    """Command lines that are wrong in one way, and what the sentence must say."""
    fit, align = ["fit", "plain.json", *PROMPTS], ["align", "plain.json", *PROMPTS]
    for command in (fit, align):
        verb, _, *rest = command
        yield [verb, "none.json", *rest], "there is no file none.json"
        yield [verb, "notes.txt", *rest], "not valid JSON"
        yield [verb, "nameless.json", *rest], "does not say what model it is for. Name it with --model."
        yield [*command, "--model", "nowhere"], "no model 'nowhere'"
        yield [*command, "--budgets", 5], "no rung of 5 calls, only of 2, 4"
        yield [*command, "--budgets", "few"], "cannot be read. Write them as 8"
        yield [*command, "--selection", 4], "4 of 4 samples for selection leave none"
        yield [*command, "--prompts", "notes.txt"], "both given"
        yield [*command, "--teacher-steps", 5], "a teacher of 5 steps is coarser than the 8 steps"
        yield [*command, "--out", "."], "is a folder"
        yield [*command, "--frames", 5], "takes no num_frames"
    for text in ("two", "2.5", "nan", "", "3,,2", "9" * 5000):
        yield [*fit, f"--outputs={text}"], "cannot be read. Write numbers with commas between them."
    yield [*fit, "--ridges=weak"], "--ridges 'weak' cannot be read"
    yield [*fit, "--ridges=nan"], "0.001 is usual"
    yield [*fit, "--outputs=0"], "blends 1 to 128 outputs, not 0"
    yield [*fit, "--outputs=129"], "128 outputs, not 129"
    yield ["fit", "residual.json", *PROMPTS], "reuses residuals, and only outputs"
    yield ["fit", "plain.json", *PROMPTS[:2]], "fitting needs samples to choose by"
    yield [*align, "--rate=0"], "Choose one above 0"
    yield [*align, "--rate=nan"], "--rate is nan. Give a finite number."
    yield [*align, "--ledger", "notes.txt"], "notes.txt is not a ledger"
    search = ["search", "tiny-flux", "--steps", 6, "--budgets", 2, *PROMPTS, "--out", "new.json"]
    yield [*search, "--refine", "fit", "--reuse", "residual"], 'only reuse="output" can be fitted'
    yield [*search, "--teacher-steps", 5], "a teacher of 5 steps is coarser than the 6 steps"


@pytest.mark.parametrize(("command", "says"), bad_inputs(), ids=lambda value: value if isinstance(value, str) else "")
def test_bad_input_earns_one_line_and_exit_code_2(command, says, folder, run_here):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, output, errors = run_here(*command)
    assert (code, output) == (2, ""), errors
    assert errors.startswith("budcache: ") and errors.count("\n") == 1
    assert says in errors
    after = {path.name: path.read_bytes() for path in folder.glob("[!.]*") if not path.match("*.ledger.jsonl")}
    assert after == before
