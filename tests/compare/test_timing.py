"""Speed-ups that noise cannot inflate, and leads that chance cannot decide."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from zoo import entry

from budcache import Mask
from budcache.comparison import Comparison, Entry, Lead, Measure, lead, percentile_lead, tail_lead
from budcache.comparison.entry import FULL
from budcache.comparison.numbers import rows
from budcache.comparison.timing import (
    LEAST_PAIRS,
    LOOK,
    MANY_PAIRS,
    MOST_PAIRS,
    NOT_MEASURABLE,
    NOT_TIMED,
    Pair,
    enough,
    pace,
    speed,
)
from budcache.errors import PipelineError
from budcache.pipeline.clock import Clock

SECONDS = st.floats(1e-3, 1e3)


@st.composite
def pairs(draw):
    count = draw(st.integers(1, 40))
    steps = draw(st.integers(2, 50))
    calls = draw(st.lists(st.integers(1, steps), min_size=count, max_size=count))
    seconds, full = (draw(st.lists(SECONDS, min_size=count, max_size=count)) for _ in range(2))
    return seconds, calls, full, [steps] * count


@given(pairs())
def test_no_noise_makes_a_method_faster_than_its_calls_allow(timing):
    _, calls, _, full_calls = timing
    found = speed(*timing)
    assert found.low <= found.median <= found.high
    assert found.median <= max(most / n for n, most in zip(calls, full_calls, strict=True)) * (1 + 1e-9)
    assert ("x" in found.text) == found.known


def test_a_table_no_longer_prints_21_times_for_6_of_28_calls():
    """What happened: a full run was slowed down by something else on the machine."""
    found = speed([0.1] * 30, [6] * 30, [2.19] * 30, [28] * 30)
    assert not found.known
    assert found.text == NOT_MEASURABLE


def test_on_a_quiet_machine_it_is_the_ratio_of_the_times():
    fixed, call = 0.02, 0.1  # seconds of the loop beside its calls, and for a model call
    own, full = fixed + 6 * call, fixed + 28 * call
    found = speed([own] * 30, [6] * 30, [full] * 30, [28] * 30)
    assert (found.median, found.low, found.high) == pytest.approx((full / own,) * 3)
    assert found.text == f"{full / own:.2f}x"


@pytest.mark.parametrize("around", [0.0, 0.2], ids=["calls alone", "and as much around them"])
@pytest.mark.parametrize("more", [3, 5, 10])
def test_where_calls_differ_from_sample_to_sample_times_add_up(around, more):
    """The median of all ratios would be that of the commonest calls, and its interval as wide as calls differ."""
    noise = Random(0)
    calls = [6 if turn % 10 < more else 5 for turn in range(40)]
    own = [(around + 0.1 * n) * noise.uniform(0.99, 1.01) for n in calls]
    full = [2.8 * noise.uniform(0.99, 1.01) for _ in calls]
    found = speed(own, calls, full, [28] * 40)
    assert found.known
    assert found.median == pytest.approx(sum(full) / sum(own), rel=0.01)
    assert found.low <= sum(full) / sum(own) <= found.high * (1 + 1e-9)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_a_speed_up_is_that_of_the_calls_of_all_samples_not_of_those_that_were_timed(share):
    noise = Random(0)
    calls = [6, 5] * 15
    own = [0.1 * n * noise.uniform(0.99, 1.01) for n in calls]
    made = [6] * round(100 * share) + [5] * round(100 * (1 - share))
    found = speed(own, calls, [2.8] * 30, [28] * 30, made)
    assert found.known
    assert found.median == pytest.approx(28 / (6 * share + 5 * (1 - share)), rel=0.01)
    assert found.median <= 28 * 100 / sum(made) * (1 + 1e-9), "what those calls allow"


def test_calls_that_were_not_timed_lie_between_those_that_were():
    calls = [8, 4] * 14 + [6]
    own = [0.1 * n for n in calls[:-1]] + [2.0]  # a single pair with six calls, and a disturbed one
    found = speed(own, calls, [2.8] * 29, [28] * 29, [5, 6, 7] * 8)
    assert found.median == pytest.approx(28 / 6)


def test_with_as_many_numbers_of_calls_as_pairs_nothing_is_known():
    calls = list(range(1, 26))
    assert not speed([0.1 * n for n in calls], calls, [2.8] * 25, [28] * 25).known


def test_drift_does_not_matter_between_pairs():
    slower = [1.0] * 10 + [2.0] * 10 + [4.0] * 10  # as if others came to use the machine
    found = speed([0.8 * pace for pace in slower], [6] * 30, [3.0 * pace for pace in slower], [28] * 30)
    assert found.median == found.low == found.high == pytest.approx(3.0 / 0.8)
    assert found.known


def test_a_disturbed_pair_of_many_does_not_move_the_speed_up():
    usual = speed([0.8] * 25, [6] * 25, [3.0] * 25, [28] * 25)
    disturbed = speed([0.8] * 22 + [20.0] * 3, [6] * 25, [3.0] * 25, [28] * 25)
    assert disturbed.median == usual.median
    assert disturbed.known


def test_what_spreads_is_not_measurable_here():
    found = speed([0.5, 1.0, 0.7, 1.3, 0.9, 0.6] * 4, [6] * 24, [3.0] * 24, [28] * 24)
    assert found.text == NOT_MEASURABLE


def test_few_pairs_tell_nothing():
    count = LEAST_PAIRS - 1
    assert speed([0.8] * count, [6] * count, [3.0] * count, [28] * count).text == NOT_MEASURABLE
    assert speed([], [], [], []).text == NOT_TIMED


def disturbed(seconds, spread, turns):
    """Pairs on a machine that others use, by a clock of their own; the true ratio is 4."""
    now, chance = [0.0], Random(0)

    def run(turn, _):
        turns.append(turn)
        now[0] += seconds
        return [Pair(4.0 * chance.lognormvariate(0, spread), 28, chance.lognormvariate(0, spread), 6)]

    return enough(run, clock=lambda: now[0])[0]


def test_quick_runs_are_repeated_until_the_ratio_is_known():
    turns = []
    found = disturbed(0.1, 0.09, turns)
    assert LEAST_PAIRS < len(found) < MOST_PAIRS
    assert turns == list(range(len(found) + 1)), "the first only warms up"
    assert pace(found).known and pace(found).median == pytest.approx(4, rel=0.1)
    assert not any(pace(found[:count]).known for count in range(LEAST_PAIRS, len(found), LOOK))


@pytest.mark.parametrize(
    ("seconds", "spread", "count"),
    [
        (0.1, 0.0, LEAST_PAIRS),
        (60.0, 0.0, LEAST_PAIRS),
        (0.1, 1.0, MOST_PAIRS),
        (60.0, 1.0, MANY_PAIRS),
        (0.75, 1.0, 40),
    ],
)
def test_how_often_runs_are_repeated_depends_on_how_long_they_take(seconds, spread, count):
    found = disturbed(seconds, spread, [])
    assert len(found) == count
    assert pace(found).known == (spread == 0.0)


def test_methods_share_full_runs_until_each_is_known():
    """One with a steady ratio, one with a wild one: the first is done early, and both have pairs of the same runs."""
    rounds, chance = [], Random(0)

    def run(turn, left):
        rounds.append(list(left))
        full = 4.0 * chance.lognormvariate(0, 0.02)
        return [Pair(full, 28, chance.lognormvariate(0, (0.02, 1.0)[number]), 6) for number in left]

    steady, wild = enough(run, 2, clock=lambda: 0.1 * len(rounds))
    assert rounds == [[0, 1]] * (1 + len(steady)) + [[1]] * (len(wild) - len(steady))
    assert (len(steady), len(wild)) == (LEAST_PAIRS, MOST_PAIRS)
    assert pace(steady).known and not pace(wild).known
    assert [pair.full for pair in wild[: len(steady)]] == [pair.full for pair in steady]


def test_one_lucky_look_is_not_enough():
    """With five pairs a small spread comes by chance: methods that do the same work were printed as 3.72x and 3.04x."""
    lucky = [0.8, 0.801, 0.8, 0.799, 0.8]
    assert not speed(lucky, [5] * 5, [3.0] * 5, [28] * 5).known
    wide = [0.5, 1.1] * 10  # narrow only with the last five
    ratios = wide + [0.8] * 5
    assert not speed(ratios, [5] * 25, [3.0] * 25, [28] * 25).known


def test_a_ratio_just_above_what_the_calls_allow_is_printed_as_a_bound_and_one_far_above_is_not():
    noise = np.exp(np.random.default_rng(0).normal(0, 0.02, 30))
    for true, text in ((3.9, "3.93x"), (4.0, "≤4.00x"), (4.04, "≤4.00x"), (4.1, NOT_MEASURABLE), (4.3, NOT_MEASURABLE)):
        found = speed(list(1 / noise), [7] * 30, [true * 1.01] * 30, [28] * 30)
        assert found.text == text
    assert found.median <= 4.0


def noisy(true, scale, chance):
    """A measurement on a machine that drifts and that others disturb, at times by far."""
    now = [0.0]

    def run(turn, _):
        now[0] += 0.1
        level = np.exp(0.3 * np.sin(turn / 7))
        full, own = level * np.exp(scale * chance.standard_t(2, size=2))
        return [Pair(true * full, 28, own, 7)]

    return pace(enough(run, clock=lambda: now[0])[0])


@pytest.mark.parametrize("true", [3.0, 4.0], ids=["below what the calls allow", "all that the calls allow"])
def test_what_is_said_to_be_known_to_5_percent_is(true):
    chance = np.random.default_rng(0)
    found = [noisy(true, scale, chance) for scale in (0.03, 0.05, 0.08, 0.1) for _ in range(50)]
    known = [each.median for each in found if each.known]
    assert len(known) > 60
    assert np.mean([abs(value / true - 1) <= 0.05 for value in known]) >= 0.9
    assert max(known) <= 4.0


PSNR = Measure(name="psnr", title="PSNR", unit="dB", digits=2)
LPIPS = Measure(name="lpips", title="LPIPS", digits=4, higher=False)


def measured(values, name="psnr"):
    count = len(values)
    samples = {"calls": (2,) * count, "seconds": (1.0,) * count, "masks": (Mask.of(4, [0, 1]),) * count}
    return Entry(
        method="m", title="m", budget=2, full_seconds=(2.0,), full_calls=(4,), values={name: values}, **samples
    )


def test_a_lead_is_of_the_same_samples():
    """Samples differ by far more than methods do; sample by sample the difference is clear."""
    hard_and_easy = (20.0, 30.0, 40.0, 50.0)
    better = tuple(value + gain for value, gain in zip(hard_and_easy, (1.0, 1.2, 0.8, 1.0), strict=True))
    found = lead(measured(better), measured(hard_and_easy), PSNR)
    assert found.mean == pytest.approx(1.0)
    assert found.error == pytest.approx(math.sqrt(0.08 / 3) / 2)
    assert found.ahead is True
    assert lead(measured(hard_and_easy), measured(better), PSNR).ahead is False


def test_lower_is_better_where_it_is():
    assert lead(measured((0.1, 0.2), "lpips"), measured((0.3, 0.41), "lpips"), LPIPS).mean == pytest.approx(0.205)


@pytest.mark.parametrize(
    ("mean", "error", "ahead"),
    [(1.0, 0.4, True), (-1.0, 0.4, False), (1.0, 0.5, None), (-1.0, 0.6, None), (1.0, None, None), (0.0, 0.0, None)],
)
def test_within_two_standard_errors_nothing_is_decided(mean, error, ahead):
    assert Lead(mean, error).ahead is ahead


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 19, 20, 64])
def test_with_few_samples_chance_decides_no_more_often(count):
    """Samples without any difference: one comparison in twenty is called decided, whatever their number."""
    none = np.random.default_rng(0).normal(size=(4000, count))
    decided = [lead(measured(tuple(row)), measured((0.0,) * count), PSNR).decided for row in none]
    assert 0.035 < np.mean(decided) < 0.065


def test_what_was_not_measured_leads_nobody():
    assert lead(measured((1.0,)), measured((1.0,), "ssim"), PSNR) is None


def between(low_calls, low, high_calls, high, budget=4):
    """A method with settings on both sides of a budget."""
    first, second = (
        measured(values).model_copy(
            update={"budget": budget, "calls": calls, "masks": tuple(Mask.of(9, range(n)) for n in calls)}
        )
        for calls, values in ((low_calls, low), (high_calls, high))
    )
    return first.model_copy(update={"second": second})


def test_quality_is_read_off_at_the_budget():
    entry = between((3, 4, 3, 4), (20.0, 30.0, 40.0, 50.0), (5, 5, 5, 5), (26.0, 33.0, 46.0, 53.0))
    assert entry.mean_calls == pytest.approx(4)
    assert entry.share == pytest.approx(1 / 3)  # from 3.5 calls to 5
    assert entry.quality("psnr") == pytest.approx((22.0, 31.0, 42.0, 51.0))
    assert entry.summed(PSNR).mean == pytest.approx(36.5)
    assert entry.calls_text == "3.5 | 5.0"
    assert entry.counting == (entry, entry.second), "the nearer one first: its pictures are shown"


def test_the_setting_that_is_nearer_to_the_budget_is_shown():
    """Chosen on other samples, the first one may be the farther one on these."""
    entry = between((3, 3), (20.0, 30.0), (4, 5), (24.0, 34.0))
    assert entry.counting == (entry.second, entry)
    assert entry.calls_text == "3.0 | 4.5"
    met = between((3, 3), (20.0, 30.0), (4, 4), (24.0, 34.0))
    assert met.counting == (met.second,), "it meets the budget, so the other one counts for nothing"
    assert (met.calls_text, met.quality("psnr")) == ("4", (24.0, 34.0))
    lacking = met.model_copy(update={"values": {}})
    assert lacking.quality("psnr") == (24.0, 34.0), "what the other one lacks is not missed"
    noisy = {"timed_seconds": (0.5, 1.0, 0.7, 1.3, 0.9) * 5}
    quick = timed(met, 1.0).model_copy(update={**noisy, "second": timed(met.second, 2.0)})
    assert (quick.timed, quick.speed) == (True, timed(met.second, 2.0).speed)


def timed(entry, own, full=4.0, steps=28, pairs=25):
    """An entry whose runs were timed on a quiet machine."""
    pair = {"full_seconds": (full,) * pairs, "full_calls": (steps,) * pairs}
    calls = (round(sum(entry.calls) / len(entry.calls)),) * pairs
    return entry.model_copy(update=pair | {"timed_seconds": (own,) * pairs, "timed_calls": calls})


def test_speed_is_read_off_at_the_budget_as_quality_is():
    """A threshold that makes 3 calls or 5 is not as fast at 4 as it is at 3."""
    entry = between((3, 3), (20.0, 30.0), (5, 5), (24.0, 34.0))
    assert timed(entry, 1.0).speed.text == NOT_TIMED, "one of two settings alone tells nothing"
    entry = timed(entry, 1.0).model_copy(update={"second": timed(entry.second, 3.0)})
    assert entry.speed.known
    assert entry.speedup == pytest.approx(4.0 / 2.0)  # 2 seconds lie between 1 and 3


def test_seconds_go_with_speed_ups():
    """Two rows timed at different times: that the machine was slower at the second one makes the method no slower."""
    one, two = timed(measured((1.0, 2.0)), 1.0), timed(measured((1.0, 2.0)), 2.0, full=8.0)
    untimed = measured((1.0, 2.0))
    disturbed = timed(untimed, 1.0).model_copy(update={"timed_seconds": (0.5, 1.0, 0.7, 1.3, 0.9) * 5})
    found = Comparison.model_construct(entries=(one, two, untimed, disturbed))
    assert found.latency(one) == found.latency(two) == pytest.approx(4.0 / 4), "most full runs took 4 seconds"
    assert found.latency(untimed) is found.latency(disturbed) is None
    full = untimed.model_copy(update={"method": FULL})
    assert found.latency(full) == 4.0
    assert Comparison.model_construct(entries=(untimed, disturbed)).latency(full) is None, "nothing was known there"


def test_machines_read_of_a_row_what_people_do():
    """Calls and settings are of those that count, the nearer one first."""
    between_two = between((3, 3), (20.0, 30.0), (4, 5), (24.0, 34.0))
    met = between((3, 3), (20.0, 30.0), (4, 4), (24.0, 34.0))
    told = []
    for each in (between_two, met):
        named = each.model_copy(update={"knob": "a", "second": each.second.model_copy(update={"knob": "b"})})
        (row,) = rows(Comparison.model_construct(entries=(named,), measures=(PSNR,)))
        told.append([row[name] for name in ("calls", "calls_min", "calls_max", "knob", "second_knob", "psnr")])
    assert told == [[4.0, 3, 5, "b", "a", pytest.approx(25 + 8 / 3)], [4.0, 4, 4, "b", None, 29.0]]


def test_above_and_below_are_treated_alike():
    values = ((3, 3), (20.0, 30.0)), ((5, 5), (24.0, 34.0))
    one, other = between(*values[0], *values[1]), between(*values[1], *values[0])
    assert one.quality("psnr") == other.quality("psnr") == pytest.approx((22.0, 32.0))


def test_the_tail_has_a_lead_of_its_own():
    base = tuple(float(20 + i) for i in range(40))
    ahead = tuple(value + 5 for value in base)
    found = tail_lead(measured(ahead), measured(base), PSNR)
    assert found.mean == pytest.approx(5)
    assert found.ahead is True
    lucky = (*base[:39], 90.0)  # far ahead on one sample, not in the tail
    assert tail_lead(measured(lucky), measured(base), PSNR).ahead is None


def test_more_seeds_of_a_prompt_that_all_come_out_alike_tell_nothing_more():
    chance = np.random.default_rng(0)
    mine, theirs = chance.normal(30, 5, size=(2, 1, 64))
    once = percentile_lead(mine, theirs, 5)
    again = percentile_lead(np.repeat(mine, 3, axis=0), np.repeat(theirs, 3, axis=0), 5)
    assert again.error == pytest.approx(once.error, rel=0.15)
    assert percentile_lead(*chance.normal(30, 5, size=(2, 3, 64)), 5).error < 0.8 * once.error
    assert percentile_lead(mine + 1, mine, 5) == Lead(pytest.approx(1.0), pytest.approx(0.0, abs=1e-9), 64)


def test_a_network_that_was_compiled_in_place_is_heard_or_not_timed():
    """Hooks that come after it was compiled are left out where the code was traced without them."""
    kind = entry("flux")
    pipe = kind.build()
    pipe.transformer.compile(backend="eager")

    def run():
        return pipe(**kind.kwargs(), num_inference_steps=2, output_type="latent")

    run()
    _, lap = Clock(pipe).time(run)
    assert lap.loop > 0
    try:
        _, lap = Clock(pipe).time(run, to_the_end=True)
    except PipelineError as error:
        assert "cannot be heard" in str(error)
    else:
        assert lap.before > 0 and lap.loop > 0, "the text encoders are not part of the loop"


def test_a_run_that_never_calls_its_network_is_not_timed():
    with pytest.raises(PipelineError, match="cannot be heard, so its loop"):
        Clock(entry("flux").build()).time(lambda: None, to_the_end=True)


def test_clocks_look_at_the_device_on_which_an_offloaded_pipeline_computes():
    """Offloading says so by a hook of accelerate's, and leaves `pipe.device` at the CPU."""
    hooks = pytest.importorskip("accelerate.hooks")
    pipe = entry("flux").build()
    assert not Clock(pipe).cuda
    for part in (each for each in pipe.components.values() if isinstance(each, torch.nn.Module)):
        hook = hooks.ModelHook()
        hook.execution_device = "cuda:0"
        hooks.add_hook_to_module(part, hook)
    assert (pipe.device.type, str(Clock(pipe).device), Clock(pipe).cuda) == ("cpu", "cuda:0", True)
