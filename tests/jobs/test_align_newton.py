"""Alignment without gradients on real pipelines: never worse, resumed to the last bit, told what it costs."""

from __future__ import annotations

import pytest
import torch
from helpers import latents, rolled
from zoo import entry

import budcache
from budcache import Ladder, Mask, Policy, SearchError
from budcache.events import Planned, RungDone, Updated
from budcache.refine.newton import Columns, GaussNewton

STEPS = 6
TEXTS = ["a cat", "two dogs", "red", "the sea at night"]
FLUX, WAN = entry("flux"), entry("wan-t2v")
ROWS = [{"outputs": [1.0]}, {"outputs": [1.3, -0.3]}, {"outputs": [1.2, -0.1, -0.1]}]
START = Policy(mask=Mask.parse("110100"), rows=ROWS)


def shared(kind):
    return {name: value for name, value in kind.kwargs().items() if name != "prompt"}


def align(policy=START, kind=FLUX, pipe=None, **more):
    pipe = pipe or kind.build()
    return budcache.align(pipe, policy, **{"prompts": TEXTS, "call": shared(kind), "selection": 1, **more})


def test_fitted_policies_are_aligned_without_gradients():
    seen = []
    pipe = FLUX.build()
    (rung,) = align(pipe=pipe, watch=seen.append)
    assert rung.sigmas is None and rung.rows != START.rows
    (line,) = rung.refined
    assert line.how == "align" and line.gain > 0 and line.prompts == 4
    planned, done = (next(each for each in seen if isinstance(each, kind)) for kind in (Planned, RungDone))
    assert line.calls == pytest.approx(planned.sample_calls, rel=0.25)
    assert done.policy == rung
    assert any(isinstance(each, Updated) for each in seen)
    with budcache.applied(pipe, rung):
        assert torch.equal(latents(FLUX, pipe), rolled(FLUX, FLUX.build(), rung))


def test_guidance_apart_is_aligned_apart():
    guided = [{**row, "branch": [0.0] * len(row["outputs"])} for row in ROWS]
    (rung,) = align(START.model_copy(update={"guided": guided}), WAN)
    assert rung.rows == START.rows
    assert any(weight for row in rung.guided for weight in row.branch)


def test_a_policy_that_does_not_gain_is_as_it_was(monkeypatch):
    """Steps in the wrong direction: none is taken."""
    usual = GaussNewton.stepped
    monkeypatch.setattr(GaussNewton, "stepped", lambda self, found, length, *_: usual(self, found, -length))
    (rung,) = align()
    assert rung.rows == START.rows
    assert rung.refined[0].how == "align, kept as it was" and rung.refined[0].gain == 0


def test_an_interrupted_alignment_goes_on(tmp_path, monkeypatch):
    ledger, whole = tmp_path / "a.ledger.jsonl", align()
    usual, made = Columns.answer, []

    def interrupted(self, known, number):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(number)
        return usual(self, known, number)

    with monkeypatch.context() as patch:
        patch.setattr(Columns, "answer", interrupted)
        with pytest.raises(KeyboardInterrupt):
            align(ledger=ledger)
    assert len(ledger.read_text().splitlines()) == 3
    monkeypatch.setattr(Columns, "answer", lambda self, known, n: made.append(n) or usual(self, known, n))
    assert align(ledger=ledger)[3] == whole[3]  # also in what it cost
    assert made == [0, 1, 2]
    assert align(ledger=ledger)[3].rows == whole[3].rows  # from the ledger alone
    assert made == [0, 1, 2]


def test_a_ledger_of_another_alignment_is_refused(tmp_path):
    align(ledger=tmp_path / "a.jsonl")
    with pytest.raises(budcache.BudcacheError, match="seed"):
        align(ledger=tmp_path / "a.jsonl", seed=5)


def test_a_ledger_of_another_number_format_is_refused(tmp_path):
    """How far a weight is moved, and what rounding leaves of it, depends on the format."""
    align(ledger=tmp_path / "ledger.jsonl")
    with pytest.raises(SearchError, match="number format"):
        align(pipe=FLUX.build().to(torch.bfloat16), ledger=tmp_path / "ledger.jsonl")


@pytest.mark.parametrize("spoilt", ['"AAAA"', '"?"', "3", '""', "null"])
def test_a_spoilt_ledger_is_refused(tmp_path, spoilt):
    ledger = tmp_path / "a.jsonl"
    align(ledger=ledger)
    lines = ledger.read_text().splitlines(keepends=True)
    before, _, after = lines[1].partition('"square": "')
    lines[1] = before + '"square": ' + spoilt + after[after.index('"') + 1 :]
    ledger.write_text("".join(lines))
    with pytest.raises(budcache.BudcacheError, match=r"line|entry|spoilt|cannot"):
        align(ledger=ledger)


def test_batches_align_the_same():
    one, three = align()[3], align(batch=3)[3]
    for mine, theirs in zip(one.rows, three.rows, strict=True):
        assert mine.weights == pytest.approx(theirs.weights, abs=2e-3)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"method": "gauss-newton", "rate": 1e-3}, 'rate belongs to the method "gradient"'),
        ({"method": "newton"}, "there is no method 'newton'"),
        ({"method": "gradient", "batch": 2}, "by gradients one sample is run at a time, not 2. Leave batch out"),
        ({"epochs": 2, "batch": 4}, 'epochs belongs to the method "gradient", .* not 4. Leave epochs or batch out'),
    ],
)
def test_settings_of_the_other_method_are_refused(more, says):
    with pytest.raises(SearchError, match=says):
        align(**more)


def test_plain_policies_want_a_fit_first():
    ladder = Ladder.of([Policy(mask=Mask.parse("100100")), START])
    with pytest.raises(SearchError, match=r"the policy of 2 calls repeats outputs .* Fit it first"):
        align(ladder, method="gauss-newton")


@pytest.mark.slow
@pytest.mark.parametrize("prompts", [3, 8])
def test_a_search_that_refines_in_full(tmp_path, prompts):
    options = {"steps": STEPS, "budgets": (3, 4), "prompts": [f"{i} cats" for i in range(prompts)]}
    options |= {"call": shared(FLUX), "refine": "full"}
    seen, pipe, ledger = [], FLUX.build(), tmp_path / "s.ledger.jsonl"
    ladder = budcache.search(pipe, **options, ledger=ledger, watch=seen.append)
    planned = next(event for event in seen if isinstance(event, Planned))
    assert ladder.searched.calls == pytest.approx(planned.sample_calls, rel=0.35)
    told = budcache.estimate(steps=STEPS, budgets=(3, 4), prompts=prompts, refine="full")
    assert told.sample_calls == planned.sample_calls
    if prompts == 3:  # all samples judge, and on those a step always gains a little
        assert all(rung.refined[-1].how == "align" and rung.quality.used_to_fit for rung in ladder)
    before = ladder.searched.calls
    again = budcache.search(pipe, **options, ledger=ledger)
    assert [rung.moving_parts for rung in again] == [rung.moving_parts for rung in ladder]
    assert again.searched.calls - before < before


def test_a_search_whose_alignment_does_not_help_does_not_claim_one(monkeypatch):
    usual = GaussNewton.stepped
    monkeypatch.setattr(GaussNewton, "stepped", lambda self, found, length, *_: usual(self, found, -length))
    options = {"prompts": TEXTS, "call": shared(FLUX), "refine": "full", "features": True}
    ladder = budcache.search(FLUX.build(), steps=STEPS, budgets=(3, 4), **options)
    hows = [line.how for rung in ladder for line in rung.refined]
    assert "rows" in hows and "align" not in hows
