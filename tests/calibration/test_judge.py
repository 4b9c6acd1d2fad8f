"""The judge: which of several policies is best on samples that nothing was searched on, and how good is it?"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import Residual, Toy

from budcache import Mask, Policy
from budcache.aggregate import standard_error
from budcache.calibration.calibration import Calibration
from budcache.calibration.judge import Judge
from budcache.metrics import psnr

STEPS = 7
POLICIES = [Policy(mask=mask) for mask in ("1000000", "1010100", "1110000")]
BLEND = Policy(mask="1010100", weights=[[1.1], [1.2, -0.1], [0.9, 0.1]])


class Decoding(Toy):
    """Its latents are its pictures, squeezed into values from 0 to 1; it counts how often it decodes."""

    decoded = 0

    def decode(self, x):
        self.decoded += 1
        return [np.asarray(torch.sigmoid(each)).reshape(1, -1, 3) for each in x]


class DecodingResidual(Decoding, Residual):
    pass


def judging(kind=Decoding, samples=(2, 1), memory=0, **more):
    runs = [kind(seed, count, steps=STEPS) for seed, count in enumerate(samples)]
    return Judge(Calibration(runs, residual=kind is DecodingResidual, **more), memory)


def knowing(losses):
    """A judge to whom losses are known, whatever comes out of the runs: by the policy's mask, sample by sample."""
    judge = judging(samples=(len(next(iter(losses.values()))),))
    told = {tuple(judge.finals(Policy(mask=mask))[0].flatten().tolist()): values for mask, values in losses.items()}
    judge.calibration.objective = lambda x, teacher, run: torch.tensor(told[tuple(x.flatten().tolist())])
    return judge


# Choosing


def test_a_sample_that_is_lost_under_any_policy_does_not_decide():
    """The geometric mean counts, not the sum."""
    judge = knowing({"1000000": [1e-2, 1e-2, 0.50], "1010100": [1e-4, 1e-4, 0.55]})
    assert judge.best(POLICIES[:2]) is POLICIES[1]


def test_of_equals_the_first_is_taken():
    judge = knowing({"1000000": [1e-3, 1e-1], "1010100": [1e-1, 1e-3]})
    first, second = POLICIES[:2]
    again = Policy(mask=first.mask)
    assert judge.best([first, second]) is first
    assert judge.best([second, first]) is second
    assert judge.best([first, second, again]) is first  # one that comes twice keeps its place
    assert judge.best(iter([again, second, first])) is again


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_is_never_chosen(bad):
    judge = knowing({"1000000": [bad, 1e-9], "1010100": [0.5, 0.5]})
    assert judge.best(POLICIES[:2]) is judge.best(POLICIES[1::-1]) is POLICIES[1]


def test_a_perfect_sample_is_no_excuse():
    """A loss of nothing counts as very small, not as everything."""
    judge = knowing({"1000000": [0.0, 0.1], "1010100": [0.0, 0.01]})
    assert judge.best(POLICIES[:2]) is POLICIES[1]


@pytest.mark.parametrize("kind", [Decoding, DecodingResidual])
@pytest.mark.parametrize("memory", [0, 10**9])
def test_final_latents_are_those_of_the_policy_as_it_is_served(kind, memory):
    judge = judging(kind, memory=memory)
    levels = (Toy(0, steps=STEPS).sigmas ** 1.1).tolist()
    policies = [*POLICIES, Policy(mask="1010100", sigmas=levels), *([BLEND] if kind is Decoding else [])]
    policies = [
        policy.model_copy(update={"reuse": "residual" if kind is DecodingResidual else "output"}) for policy in policies
    ]
    fresh = judging(kind).calibration
    for policy in policies:
        assert all(map(torch.equal, judge.finals(policy), fresh.finals(policy)))
        assert judge.losses(policy) == fresh.losses(fresh.finals(policy))


# Measuring


def test_what_was_compared_is_measured_without_a_call():
    judge = judging()
    best = judge.best([*POLICIES, BLEND])
    before = judge.calls
    for policy in (best, *POLICIES, BLEND):
        assert judge.quality(policy, used_to_choose=True).samples == 3
    assert judge.best([*POLICIES, BLEND]) is best
    assert judge.calls == before
    judge.forget()
    judge.quality(BLEND.model_copy(update={"weights": ((0.9,), *BLEND.weights[1:])}), used_to_choose=True)
    assert judge.calls == before + 3 * BLEND.budget


def test_policies_are_told_apart_by_all_that_moves_them():
    """Not by their names: an origin or a quality changes no picture."""
    judge = judging()
    judge.finals(BLEND)
    before = judge.calls
    judge.finals(BLEND.model_copy(update={"quality": judge.quality(BLEND, used_to_choose=False)}))
    assert judge.calls == before
    others = [
        BLEND.model_copy(update={"weights": None}),
        BLEND.model_copy(update={"weights": [[1.1], [1.2, -0.1], [0.9, 0.2]]}),
        BLEND.model_copy(update={"sigmas": (Toy(0, steps=STEPS).sigmas ** 1.1).tolist()}),
    ]
    ends = [torch.cat(judge.finals(policy)) for policy in (BLEND, *others)]
    assert not any(torch.equal(one, other) for i, one in enumerate(ends) for other in ends[:i])


def test_the_teachers_pictures_are_decoded_once():
    judge = judging(samples=(2, 1))
    for policy in POLICIES:
        judge.quality(policy, used_to_choose=True)
    assert [run.decoded for run in judge.calibration.runs] == [1 + len(POLICIES)] * 2


def test_quality_is_of_the_pictures():
    judge = judging(samples=(3, 2))
    quality = judge.quality(POLICIES[1], used_to_choose=True)
    ratios = [
        psnr(picture, reference)
        for number, (run, x) in enumerate(zip(judge.calibration.runs, judge.finals(POLICIES[1]), strict=True))
        for picture, reference in zip(run.decode(x), run.decode(judge.calibration.teacher(number)), strict=True)
    ]
    assert len(set(ratios)) == 5
    assert quality.psnr == pytest.approx(sum(ratios) / 5)
    assert quality.psnr_error == standard_error(ratios)
    assert quality.psnr_worst == min(ratios)
    assert quality.psnr_p5 == pytest.approx(np.percentile(ratios, 5))
    assert quality.loss == pytest.approx(sum(judge.losses(POLICIES[1])) / 5)
    assert (quality.samples, quality.used_to_choose, quality.calibration_loss) == (5, True, None)


def test_what_is_left_of_a_policy_is_what_its_parts_give():
    judge = judging(samples=(3, 2))
    sigmas = (Toy(0, steps=STEPS).sigmas ** 1.1).tolist()
    rows = [{"outputs": [weight]} for weight in (1.1, 1.2, 0.9)]
    guided = Policy(mask=BLEND.mask, rows=rows, guided=[{"outputs": [1.0], "branch": [0.1]}] * 3, sigmas=sigmas)

    def measured(policy):
        return judge.quality(policy, used_to_choose=True).psnr

    plain = measured(Policy(mask=BLEND.mask))
    assert judge.left_of(POLICIES[1]) == {}
    assert judge.left_of(BLEND) == {"psnr_plain": plain}
    assert judge.left_of(POLICIES[1].model_copy(update={"sigmas": sigmas})) == {"psnr_plain": plain}
    combined = measured(guided.model_copy(update={"guided": None}))
    assert judge.left_of(guided) == {"psnr_plain": plain, "psnr_combined": combined}
    assert judge.left_of(guided, plain=False) == {"psnr_combined": combined}


def test_a_perfect_picture_has_a_finite_psnr():
    judge = judging(samples=(1,))
    quality = judge.quality(Policy(mask=Mask.full(STEPS)), used_to_choose=False)
    assert (quality.loss, quality.psnr, quality.psnr_error, quality.used_to_choose) == (0.0, 100.0, None, False)
