"""Guidance branches that decide apart: each by its own state, as the authors' codes for Wan do, counted by halves."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import STEPS, calibrated, known, run, sample
from zoo import entry

from budcache import Mask, compare
from budcache.baselines import Branch, Knob, Native, StaticBranch, caching
from budcache.baselines.dicache import DiCache
from budcache.baselines.magcache import MagCache
from budcache.baselines.pictures import call
from budcache.baselines.teacache import TeaCache
from budcache.baselines.tuning import Choice, Tuner
from budcache.comparison import Comparison
from budcache.comparison.settings import Settings
from budcache.mask import Computed
from budcache.report.charts import strips

WAN = "wan-t2v-euler"


def counted_in_calls(ratios, threshold, longest, retention):
    """MagCache on Wan as its rule is written: one counter over the calls of both branches, its parity the branch."""
    steps = len(ratios[0])
    product, error, skipped = [1.0, 1.0], [0.0, 0.0], [0, 0]
    bits = [[], []]
    for count in range(2 * steps):
        step, branch = divmod(count, 2)
        skip = False
        if count >= int(2 * steps * retention):
            product[branch] *= ratios[branch][step]
            skipped[branch] += 1
            error[branch] += abs(1 - product[branch])
            skip = error[branch] < threshold and skipped[branch] <= longest and step > 0
        if not skip:
            product[branch], error[branch], skipped[branch] = 1.0, 0.0, 0
        bits[branch].append(not skip)
    return tuple(Mask(tuple(each)) for each in bits)


@given(st.data())
def test_magcaches_branches_are_those_of_a_counter_over_all_calls(data):
    steps = data.draw(st.integers(2, 30))
    near_one = st.lists(st.floats(0.8, 1.2), min_size=steps, max_size=steps).map(tuple)
    ratios = data.draw(st.tuples(near_one, near_one))
    threshold, retention = data.draw(st.floats(0.0, 0.6)), data.draw(st.floats(0.0, 0.5))
    longest = data.draw(st.integers(1, 6))
    method = MagCache(
        steps=steps,
        ratios=ratios[0],
        others=ratios[1:],
        apart=True,
        strict=True,
        threshold=threshold,
        longest=longest,
        retention=retention,
    )
    assert method.planned().branches == counted_in_calls(ratios, threshold, longest, retention)
    assert replace(method, apart=False).planned() == Computed.of(method.planned().branches[0])


def test_published_branches_differ_where_the_ratios_do():
    method = MagCache.published("Wan2.1-T2V-1.3B")
    assert method.apart and len(method.others[0]) == 50
    first, second = method.planned().branches
    assert first == second, "at the published settings they agree"
    sweep = [replace(method, threshold=t / 100, longest=k).planned() for t in range(2, 40) for k in range(2, 7)]
    assert any(len(set(each.branches)) > 1 for each in sweep)
    odd = replace(method, steps=28, threshold=9.0, longest=99)  # 11 of 56 calls are forced
    assert [mask.budget for mask in odd.planned().branches] == [6, 5]
    assert odd.planned().calls == 5.5


def test_on_wan_teacaches_branches_agree_by_themselves():
    """Its signal is the embedding of the time, which both branches are given."""

    @dataclass(frozen=True, kw_only=True)
    class Apart(TeaCache):
        apart: bool = True

    kind, pipe, seen = known(WAN)
    with caching(pipe, Apart.calibrated(seen).tuned(0.3), STEPS) as apart:
        run(kind, pipe)
    with caching(pipe, TeaCache.calibrated(seen).tuned(0.3), STEPS) as together:
        run(kind, pipe)
    assert apart.finished == together.finished
    assert 2 < apart.calls[0] < STEPS


def test_half_a_step_is_half_a_call():
    ran = Computed(((True, True), (True, False), (False, True), (False, False)))
    assert ran.calls == 2 and isinstance(ran.calls, int)
    assert Computed(ran.steps[:2]).calls == 1.5
    assert (str(ran.mask), [str(mask) for mask in ran.branches]) == ("1110", ["1100", "1010"])
    midway = Computed(((True,), (True, True), (False, False)))  # guidance begins at the second step
    assert [str(mask) for mask in midway.branches] == ["110", "10"]
    assert midway.calls == 2


def test_each_branch_follows_its_own_decisions():
    @dataclass(frozen=True, kw_only=True)
    class Two(Native):
        name = "two"
        knob = Knob("interval", most=1, fewest=9, whole=True)
        interval: int = 2
        apart: bool = True

        @classmethod
        def calibrated(cls, record):
            return cls(steps=record.steps)

        def branch(self, steps: int, number: int) -> Branch:
            return StaticBranch(Mask.of(steps, range(0, steps, self.interval + number)))

    kind, pipe, _ = known(WAN)
    for apart, wanted in ((True, ["10101010", "10010010"]), (False, ["10101010"] * 2)):
        with caching(pipe, Two(steps=STEPS, apart=apart), STEPS) as runs:
            run(kind, pipe)
        assert [str(mask) for mask in runs.finished[0].branches] == wanted
    assert runs.calls == [4]


def test_dicaches_decisions_are_those_of_a_counter_over_all_calls():
    """The probe runs in every call, so what it saw is there to decide by once more."""
    kind, pipe, _ = known(WAN)
    method = calibrated(WAN, "dicache")
    assert method.apart
    for threshold, warmup in ((0.05, 0.2), (0.1, 0.0), (0.3, 0.2), (1e4, 0.2)):
        seen = []
        with ExitStack() as undo:
            probe = pipe.transformer.blocks[0]
            undo.callback(probe.register_forward_hook(lambda _, given, out, seen=seen: seen.append(out.clone())).remove)
            runs = undo.enter_context(caching(pipe, replace(method, threshold=threshold, warmup=warmup), STEPS))
            run(kind, pipe)
        wanted = []
        for branch in (0, 1):
            total, bits = 0.0, [True]
            for step, (old, new) in enumerate(pairwise(seen[branch::2]), 1):
                skip = False
                if 2 * step + branch >= int(2 * STEPS * warmup):
                    total += ((new - old).abs().mean() / old.abs().mean()).item()
                    skip = total < threshold
                total = total if skip else 0.0
                bits.append(not skip)
            wanted.append(Mask(tuple(bits)))
        assert runs.finished[0].branches == tuple(wanted)
    assert runs.calls == [1.5], "three calls are forced: two of the first branch and one of the second"


@pytest.mark.parametrize("name", ["magcache", "dicache"])
def test_together_is_tried_as_well(name):
    assert {each.apart for each in calibrated(WAN, name).variants()} == {True, False}
    assert {each.apart for each in calibrated("flux", name).variants()} == {False}


def test_the_nearer_of_apart_and_together_is_chosen():
    kind, pipe, seen = known(WAN)
    samples = [sample(kind, seed) for seed in (0, 1)]
    method = calibrated(WAN, "magcache")
    spent = []
    tuning = Tuner(pipe, method, samples, known=seen, spent=spent.append)
    found = tuning.choice(4)
    ((chosen, calls),) = found.settings
    assert calls == 4
    tried = {setting.apart: tuning.trials.run(setting, 2).quality(2) for setting in tuning._masks[4]}
    assert set(tried) == {True, False}
    nearness = tuning.trials.run(chosen, 2).quality(2)
    for setting in tuning._masks[4]:
        if setting in tuning.trials:
            assert tuning.trials.run(setting, 2).quality(2) <= nearness
    with caching(pipe, chosen, STEPS) as runs:
        pipe(**call(samples[:1], STEPS))
    assert runs.finished == [Computed(tuple(step * (2 // len(step)) for step in chosen.planned().steps))]
    assert sum(spent) <= tuning.sample_calls < sum(spent) + 1


def test_a_comparison_counts_halves_and_shows_both_branches(tmp_path):
    zoo = entry(WAN)
    settings = Settings({})
    method = DiCache(steps=4, threshold=1e4, warmup=0.4, inclusive=False, last=False, difference=False, apart=True)
    settings.keep("dicache", 2, Choice(((method, 1.5),), 2, 0))
    found = compare(
        zoo.build(),
        steps=4,
        budgets=[2],
        prompts=["a cat", "a dog"],
        calibration=["a ship"],
        folder=tmp_path / "found",
        methods=["dicache"],
        metrics=["psnr"],
        call={name: value for name, value in zoo.kwargs().items() if name != "prompt"},
        settings=settings.save(tmp_path / "settings.json"),
        timed=[],
    )
    made = found.entry("dicache", 2)
    assert made.calls == (1.5, 1.5)
    assert [[str(mask) for mask in each] for each in made.branches] == [["1100", "1000"]] * 2
    assert made.calls_text == "1.5"
    assert 1.5 < made.mean_equivalents < 4, "probes are counted, too"
    (drawn,) = strips(found, [made])
    assert drawn.shares == (1.0, 0.5, 0.0, 0.0)
    assert drawn.note == "a mask for each guidance branch"
    assert Comparison.load(tmp_path / "found" / "comparison.json") == found
    assert "1.5" in (tmp_path / "found" / "comparison.csv").read_text()
