"""Alignment on real pipelines: what is learned is what is served, nothing is left behind, nothing is lost."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from functools import cache

import pytest
import torch
from helpers import counted, follow, latents, opened, rolled
from zoo import entry

import budcache
from budcache import BudcacheError, Ladder, Mask, Origin, Policy, SearchError
from budcache.calibration.calibration import Calibration
from budcache.events import RungDone, Updated

STEPS, MASK = 6, Mask.parse("110100")
TEXTS = ["a cat", "two dogs", "red", "the sea at night"]
FLUX = entry("flux")


def shared(kind):
    return {name: value for name, value in kind.kwargs().items() if name != "prompt"}


@cache
def pipeline(name):
    return entry(name).build()


@cache
def first_sample(name, steps=STEPS):
    """The pipeline's own levels and noise of a sample."""
    with opened(entry(name), pipeline(name), steps=steps) as run:
        return run.sigmas.double(), run.noise.clone()


def badly_placed(name, mask=MASK, **more):
    """A policy whose levels are not where they should be, so that there is something to learn."""
    levels, _ = first_sample(name, len(mask))
    return Policy(mask=mask, sigmas=tuple(((levels / levels[0]) ** 2.5 * levels[0]).tolist()), **more)


def align(policy, name="flux", **more):
    """Align on four prompts, the last of which is to choose by."""
    options = {"prompts": TEXTS, "rate": 1e-2, "every": 1, "call": shared(entry(name)), **more}
    pipe = options.pop("pipe", None) or pipeline(name)
    return budcache.align(pipe, policy, **options).rungs[0]


def updates(policy, name="flux", **more):
    """The updates of an alignment, as whoever watches it is told of them."""
    seen = []
    align(policy, name, watch=seen.append, **more)
    return [event for event in seen if isinstance(event, Updated)]


def moved(ledger):
    """The parameters after each update that a ledger holds."""
    return [json.loads(line)["parameters"] for line in ledger.read_text().splitlines()[1:]]


def learn(policy, name="flux", **more):
    """Align on one sample over and over, and choose by it: networks of chance have no more than that to teach."""
    sample = {"prompt": "a cat", "latents": first_sample(name)[1]}
    return align(policy, name, prompts=(), samples=[sample] * 6, selection=1, **more)


def loss(name, policy, **options):
    """The loss of a policy on that sample."""
    kind = entry(name)
    with opened(kind, pipeline(name), steps=policy.steps, reuse=policy.reuse) as run:
        judge = Calibration([run], residual=policy.reuse == "residual", **options)
        return judge.losses(judge.finals(policy))[0]


@pytest.mark.parametrize(
    ("name", "reuse"), [("flux", "output"), ("flux", "residual"), ("sd3", "output"), ("wan-t2v", "output")]
)
def test_an_aligned_policy_is_better_and_is_served_as_it_was_learned(name, reuse):
    kind, pipe, start = entry(name), pipeline(name), badly_placed(name, reuse=reuse)
    found = learn(start, name)
    assert found.sigmas != start.sigmas and found.sigmas[0] == start.sigmas[0] and found.sigmas[-1] == 0
    assert found.refined[0].how == "align"
    assert found.quality.loss == loss(name, found) < loss(name, start)
    found = Policy.model_validate(json.loads(found.model_dump_json()))  # as from a file
    expected = rolled(kind, pipe, found, 5)
    with budcache.applied(pipe, found) as handle:
        served = latents(kind, pipe, 5)
    assert handle.stats().last_run_calls == MASK.budget
    assert torch.equal(served, expected)


@pytest.mark.parametrize("reuse", ["output", "residual"])
@pytest.mark.parametrize("ending", ["well", "badly"])
def test_the_pipeline_is_left_as_it_was(reuse, ending):
    pipe = FLUX.build()
    pipe.vae.requires_grad_(False)
    before, scheduler, attributes = latents(FLUX, pipe), pipe.scheduler, dict(vars(pipe))
    modules = {name: part for name, part in pipe.components.items() if isinstance(part, torch.nn.Module)}

    def facts():
        return [
            (n, p.requires_grad, p.grad is None, p.data_ptr())
            for m in modules.values()
            for n, p in m.named_parameters()
        ]

    known = facts()
    assert {needs for _, needs, _, _ in known} == {True, False}
    if ending == "well":
        needs = []

        def watch(event):
            if isinstance(event, Updated):
                needs.extend(fact[1] for fact in facts())

        align(Policy(mask=MASK, reuse=reuse), pipe=pipe, watch=watch)
        assert needs and not any(needs)  # meanwhile nothing is recorded for them
    else:

        def stop(event):
            if isinstance(event, Updated):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            align(Policy(mask=MASK, reuse=reuse), pipe=pipe, watch=stop)
    assert facts() == known
    assert pipe.scheduler is scheduler and vars(pipe) == attributes
    assert torch.equal(latents(FLUX, pipe), before)
    assert not [thread for thread in threading.enumerate() if thread.name == "budcache-pipeline"]
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_the_first_loss_is_that_of_the_policy_itself():
    """Before the first update nothing has moved: the levels are the pipeline's own, to the last bit."""
    seen = updates(Policy(mask=MASK))
    assert [update.number for update in seen] == [0, 1, 2]
    assert {update.budget for update in seen} == {MASK.budget}
    with opened(FLUX, pipeline("flux"), 0, prompt=TEXTS[0]) as run:
        known = Calibration([run])
        assert (seen[0].loss,) == known.losses(known.finals(Policy(mask=MASK)))


def test_the_first_update_tells_where_it_began_and_every_look_is_told():
    """The last update is looked at in any case."""
    seen = updates(Policy(mask=MASK), every=2)
    assert [update.held_out is not None for update in seen] == [False, True, True]
    assert [update.start is not None for update in seen] == [True, False, False]
    with opened(FLUX, pipeline("flux"), 3, prompt=TEXTS[3]) as run:
        judge = Calibration([run])
        assert (seen[0].start,) == judge.losses(judge.finals(Policy(mask=MASK)))


@pytest.mark.parametrize("rate", [1e-4, 30.0])
def test_what_was_best_on_the_samples_put_aside_is_kept(rate):
    """The start among them: nothing is returned that is worse than it."""
    start, seen = badly_placed("flux"), []
    found = align(start, rate=rate, watch=seen.append)
    looks = [event for event in seen if isinstance(event, Updated)]
    assert found.quality.loss == min(looks[0].start, *(update.held_out for update in looks))
    assert (found.sigmas == start.sigmas) == (found.quality.loss == looks[0].start)
    assert [event.policy for event in seen if isinstance(event, RungDone)] == [found]


def test_weights_are_learned_with_the_levels():
    start = Policy(mask=MASK, weights=((1.0,), (1.3, -0.3), (1.0, 0.0, 0.0)))
    found, pipe = learn(start), pipeline("flux")
    assert found.refined[0].how == "align, joint"
    assert [len(row) for row in found.weights] == [1, 2, 3]
    assert found.weights != start.weights and found.sigmas is not None
    assert found.quality.loss == loss("flux", found) < loss("flux", start)
    expected = rolled(FLUX, pipe, found, 5)
    with budcache.applied(pipe, found):
        assert torch.equal(latents(FLUX, pipe, 5), expected)


def test_where_nothing_is_gained_a_policy_stays_as_it_was():
    start = Policy(mask=Mask.full(STEPS), origin=Origin(model="mine"))  # the teacher itself
    found = align(start)
    assert (found.mask, found.sigmas, found.weights) == (start.mask, None, None)
    assert found.origin == Origin(model="mine", levels=found.origin.levels)
    assert found.quality.loss == 0
    assert (found.refined[0].how, found.refined[0].gain) == ("align, kept as it was", 0)


def test_decoded_pictures_may_be_compared_instead(tmp_path):
    start, pipe = badly_placed("flux"), pipeline("flux")
    seen = updates(start, objective="pixel", ledger=tmp_path / "a.jsonl")
    # AdamW's first step is as large as the rate wherever there is a gradient, and none where there is none.
    assert max(map(abs, moved(tmp_path / "a.jsonl")[0])) == pytest.approx(1e-2, rel=1e-2)
    with opened(FLUX, pipe, 0, prompt=TEXTS[0]) as run:
        ends = [follow(run, policy) for policy in (start, Policy(mask=Mask.full(STEPS)))]
        (student,), (teacher,) = map(run.decode, ends)
    assert seen[0].loss == pytest.approx(float(((student - teacher) ** 2).mean()), rel=1e-4)


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_it_runs_in_another_number_format(reuse, tmp_path):
    start = badly_placed("flux", reuse=reuse)
    plain = updates(start)
    rounded = updates(start, autocast="bfloat16", ledger=tmp_path / "a.jsonl")
    assert rounded[0].loss != plain[0].loss == pytest.approx(rounded[0].loss, rel=0.5)
    assert all(math.isfinite(update.held_out) for update in rounded)
    for parameters in moved(tmp_path / "a.jsonl"):
        assert all(map(math.isfinite, parameters)) and any(parameters)


def test_a_short_plain_schedule_is_aligned_with_the_full_run():
    """The paper's Original-Opt.: every step is computed, and the teacher has more of them."""
    start, pipe = badly_placed("flux", Mask.full(4)), pipeline("flux")
    found = learn(start, teacher_steps=12)
    assert (found.budget, found.steps) == (4, 4)
    assert found.origin.teacher_steps == 12
    finer, _ = first_sample("flux", 12)
    assert found.quality.loss < loss("flux", start, teacher_sigmas=finer.float())
    full = latents(FLUX, pipe, num_inference_steps=12)
    with budcache.applied(pipe, found), counted(FLUX, pipe) as heard:
        fast = latents(FLUX, pipe, num_inference_steps=4)
    assert len(heard) == 4
    assert found.quality.loss == pytest.approx((fast.double() - full.double()).square().mean().item(), rel=1e-4)


@pytest.mark.parametrize("more", [{}, {"objective": "pixel"}, {"teacher_steps": 9}], ids=str)
def test_all_calls_are_counted(more):
    with counted(FLUX, pipeline("flux")) as heard:
        found = align(Policy(mask=MASK), **more)
    assert found.refined[0].calls == len(heard)


def test_the_rungs_of_a_ladder_share_their_teachers():
    """A rung learns the same as alone; only the first pays for the full runs of the lessons."""
    rungs = [Policy(mask=MASK), Policy(mask="110110")]
    alone = [align(rung) for rung in rungs]
    with counted(FLUX, pipeline("flux")) as heard:
        together = budcache.align(
            pipeline("flux"), Ladder.of(rungs), prompts=TEXTS, rate=1e-2, every=1, call=shared(FLUX)
        ).rungs
    assert [rung.sigmas for rung in together] == [rung.sigmas for rung in alone]
    spent = [rung.refined[0].calls for rung in together]
    assert sum(spent) == len(heard)
    saved = (len(TEXTS) - 1) * (STEPS - 1)  # each lesson's first call is there as soon as its run is open
    assert spent == [alone[0].refined[0].calls, alone[1].refined[0].calls - saved]


# Killed, and gone on with


LEARNING = """
import os, signal, sys
sys.path[:0] = {paths!r}
import torch
torch.set_num_threads(1)
from jobs.test_align import learning

def stop(event):
    if (getattr(event, "budget", None), getattr(event, "number", None)) == (3, 1):
        os.kill(os.getpid(), signal.SIGKILL)

learning(sys.argv[1], sys.argv[2], stop)
"""


def learning(ledger, out, watch=None):
    """An alignment of two rungs, four updates each, in whatever process."""
    ladder = Ladder.of([badly_placed("flux", Mask.parse(text)) for text in ("100100", "110100")])
    texts = [*TEXTS, "a dog"]
    more = {"prompts": texts, "selection": 1, "rate": 1e-2, "every": 3, "ledger": ledger, "call": shared(FLUX)}
    budcache.align(pipeline("flux"), ladder, watch=watch, **more).save(out)


def essence(path):
    """What a ladder says, but for what it cost."""
    return [(rung.mask, rung.sigmas, rung.quality, rung.refined[0].gain) for rung in Ladder.load(path)]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL there")
def test_a_killed_alignment_goes_on_and_ends_the_same(tmp_path, request):
    """Killed after the second update of the second rung."""
    learning(tmp_path / "whole.jsonl", tmp_path / "whole.json")
    undisturbed = (tmp_path / "whole.jsonl").read_text().splitlines()
    assert len(undisturbed) == 1 + 2 * 4
    ledger, out = tmp_path / "killed.jsonl", tmp_path / "killed.json"
    tests = request.path.parent.parent
    code = LEARNING.format(paths=[str(tests), str(tests / "pipeline")])
    done = subprocess.run([sys.executable, "-c", code, ledger, out], capture_output=True, text=True, timeout=240)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(ledger.read_text().splitlines()) == 1 + 4 + 2
    assert not out.exists()
    learning(ledger, out)
    assert essence(out) == essence(tmp_path / "whole.json")
    entries = [[json.loads(line) for line in lines[1:]] for lines in (undisturbed, ledger.read_text().splitlines())]
    for line in (*entries[0], *entries[1]):
        del line["calls"]  # the pipelines had to be opened again
    assert entries[0] == entries[1]
    calls = [sum(rung.refined[0].calls for rung in Ladder.load(path)) for path in (tmp_path / "whole.json", out)]
    assert calls[0] < calls[1]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The ledger of a finished alignment."""
    path = tmp_path_factory.mktemp("kept") / "a.ledger.jsonl"
    align(Policy(mask=MASK), ledger=path)
    return path


def test_a_finished_alignment_is_not_made_again(kept):
    """What is known is told once more, for who draws its curve, but not written."""
    before = kept.read_bytes()
    seen = updates(Policy(mask=MASK), ledger=kept)
    assert [update.loss for update in seen] == [json.loads(line)["loss"] for line in before.splitlines()[1:]]
    assert kept.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"rate": 1e-3}, "rate"),
        ({"every": 2}, "every"),
        ({"epochs": 2}, "epochs"),
        ({"mean": "geometric"}, "mean"),
        ({"seed": 1}, "seed"),
        ({"objective": "pixel"}, "objective"),
        ({"autocast": "bfloat16"}, "autocast"),
        ({"teacher_steps": 9}, "teacher_steps"),
        ({"selection": 2}, "samples learned on"),
        ({"prompts": ["another", *TEXTS[1:]]}, "other prompts than this one"),
        ({"policy": Policy(mask="110010")}, "policies"),
        ({"policy": Policy(mask=MASK, reuse="residual")}, "policies"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_the_ledger_of_another_alignment_is_refused(kept, change, names):
    with pytest.raises(BudcacheError, match=rf"belongs to an alignment with {names}\b.*Choose another "):
        align(**{"policy": Policy(mask=MASK), "ledger": kept, **change})


@pytest.mark.parametrize("change", [{"budget": None}, {"moments": 3}, {"calls": "many"}, {"parameters": None}], ids=str)
def test_a_line_that_is_no_update_is_shown(kept, change, tmp_path):
    head, first, *_ = kept.read_text().splitlines()
    line = json.loads(first) | change
    if None in change.values():
        del line[next(iter(change))]
    path = tmp_path / "a.ledger.jsonl"
    path.write_text(f"{head}\n{json.dumps(line)}\n")
    with pytest.raises(BudcacheError, match=r"has a line that cannot be used: .*Remove the line, or remove the file"):
        align(Policy(mask=MASK), ledger=path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompts": []}, "no prompts"),
        ({"prompts": TEXTS[:1]}, "1 of 1 samples for selection leave none"),
        ({"selection": 0}, "needs samples to choose by"),
        ({"objective": "sound"}, "no objective 'sound' to align by"),
        ({"rate": 0.0}, "Choose one above 0"),
        ({"every": 0}, "every 0 updates"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"mean": "median"}, "there is no 'median' mean"),
        ({"autocast": "float16"}, "autocast to 'float16' is not possible"),
        ({"teacher_steps": 3}, "teacher of 3 steps is coarser than the 6 steps"),
    ],
    ids=str,
)
def test_what_cannot_be_aligned_is_refused(change, says):
    with counted(FLUX, pipeline("flux")) as heard, pytest.raises(SearchError, match=says) as caught:
        align(Policy(mask=MASK), **change)
    assert "\n" not in str(caught.value) and heard == []


def test_every_epoch_begins_from_other_noise():
    """As many updates as samples and epochs; the second time, sample i has the seed behind those of all samples."""
    seen = updates(Policy(mask=MASK), epochs=2, rate=1e-12)
    assert [update.number for update in seen] == list(range(6))
    for number in (0, 2):
        with opened(FLUX, pipeline("flux"), len(TEXTS) + number, prompt=TEXTS[number]) as run:
            known = Calibration([run])
            (expected,) = known.losses(known.finals(Policy(mask=MASK)))
        assert seen[3 + number].loss == pytest.approx(expected, rel=1e-6) != seen[number].loss


def test_with_weights_the_geometric_mean_is_what_counts():
    """By default the paper's settings for levels alone, ours where there are weights."""
    weights = ((1.0,), (1.3, -0.3), (1.0, 0.0, 0.0))
    for policy, paces in (
        (Policy(mask=MASK), {"rate": 1e-3, "mean": "arithmetic"}),
        (Policy(mask=MASK, weights=weights), {"rate": 1e-2, "mean": "geometric"}),
    ):
        given = updates(policy, selection=2, **paces)
        assert updates(policy, rate=None, selection=2) == given
    with (
        opened(FLUX, pipeline("flux"), 2, prompt=TEXTS[2]) as one,
        opened(FLUX, pipeline("flux"), 3, prompt=TEXTS[3]) as other,
    ):
        judge = Calibration([one, other])
        losses = judge.losses(judge.finals(Policy(mask=MASK, weights=weights)))
    assert given[0].start == pytest.approx(math.sqrt(losses[0] * losses[1]))


def test_what_is_refused_leaves_no_ledger_behind(tmp_path):
    wrong = {"rate": 0.0}, {"every": 0}, {"teacher_steps": 3}, {"objective": "sound"}
    for change, says in zip(wrong, ("above 0", "every 0 updates", "coarser", "'sound'"), strict=True):
        with pytest.raises(SearchError, match=says):
            align(Policy(mask=MASK), ledger=tmp_path / "a.ledger.jsonl", **change)
    assert not list(tmp_path.iterdir())


def test_a_pipeline_that_takes_the_time_as_a_bare_number_is_aligned_all_the_same():
    """AuraFlow: no gradient comes through its time, but one comes through the steps."""
    start = badly_placed("auraflow")
    assert loss("auraflow", learn(start, "auraflow")) < loss("auraflow", start)


def test_schedulers_without_levels_are_refused_with_a_sentence():
    with pytest.raises(budcache.PipelineError, match="DDIMScheduler keeps no list of sigmas"):
        align(Policy(mask=MASK), "sd15-ddim")


def test_a_look_that_is_not_finite_is_no_reason_to_end(tmp_path, monkeypatch):
    """The policy overflows on the samples put aside: it is not kept, and the ledger has no NaN."""
    from budcache.calibration.judge import Judge

    usual, looks = Judge.losses, []

    def losses(self, policy):
        looks.append(policy)
        return (math.nan,) if len(looks) == 3 else usual(self, policy)  # the start, then after each update

    ledger = tmp_path / "ledger.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "losses", losses)
        first = align(badly_placed("flux"), ledger=ledger)
    assert len(looks) > 3
    written = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    assert [line["held_out"] is None for line in written] == [False, True, False]
    again = align(badly_placed("flux"), ledger=ledger)
    assert again.sigmas == first.sigmas
