"""The choice among masks and fits, by samples that nothing was fitted on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import Toy, calibration

from budcache import Mask, Origin, Policy, Quality
from budcache.aggregate import geometric_mean, mean
from budcache.calibration.calibration import Calibration
from budcache.calibration.judge import Judge
from budcache.jobs.refining import best_fit, gain, origin_after
from budcache.refine.fit import FittedScorer

MASKS = [Mask.parse(text) for text in ("110100100100", "101001001000", "111110000000")]
POLICIES = [Policy(mask=mask) for mask in MASKS]


class Decoding(Toy):
    def decode(self, x):
        return [np.asarray(torch.sigmoid(each)).reshape(1, -1, 3) for each in x]


class Fitter(FittedScorer):
    """Writes down what it fits."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.fitted = []

    def fit(self, mask):
        self.fitted.append(mask)
        return super().fit(mask)


def judging():
    return Judge(Calibration([Decoding(seed) for seed in range(100, 104)]))


def loss(judge, policy):
    return geometric_mean(judge.losses(policy))


@pytest.fixture
def known():
    return calibration(range(6))


def test_first_the_mask_is_chosen_and_then_its_fit(known):
    fitters = [Fitter(known, outputs=outputs, ridge=ridge) for outputs, ridge in ((3, 1e-3), (2, 1e-2), (1, 1e-1))]
    judge = judging()
    plain, chosen = best_fit(fitters, judge, [*POLICIES, Policy(mask=MASKS[0])])
    fitted = [list(fitter.fitted) for fitter in fitters]
    assert plain == min(POLICIES, key=lambda policy: loss(judge, policy))
    by_first = [Policy(mask=mask, weights=fitters[0].fit(mask).weights) for mask in MASKS]
    best_mask = min([plain, *by_first], key=lambda policy: loss(judge, policy)).mask
    assert fitted == [MASKS, [best_mask], [best_mask]]  # each mask once
    tried = [
        plain,
        *by_first,
        *(Policy(mask=best_mask, weights=fitter.fit(best_mask).weights) for fitter in fitters[1:]),
    ]
    assert loss(judge, chosen) == min(loss(judge, policy) for policy in tried)
    assert chosen.weights is not None


def test_what_is_chosen_tells_the_loss_that_it_was_fitted_with(known):
    fitter = FittedScorer(known)
    _, chosen = best_fit([fitter], judging(), POLICIES[:1])
    found = fitter.fit(MASKS[0])
    assert chosen.weights == found.weights
    assert chosen.quality == Quality(calibration_loss=found.loss)
    assert found.loss == mean(known.losses(known.finals(chosen)))


def test_a_fit_that_does_not_help_is_left_out(known):
    """On samples of another kind: fitted to flows that run backwards."""
    backwards = Calibration([Toy(seed, field=lambda x, sigma: -x) for seed in range(4)])
    plain, chosen = best_fit([FittedScorer(backwards), FittedScorer(backwards, outputs=2)], judging(), POLICIES)
    assert chosen is plain
    assert chosen.weights is None


def test_everything_is_rolled_once(known):
    judge, fitters = judging(), [FittedScorer(known, outputs=outputs) for outputs in (3, 2)]
    before = judge.calls
    plain, chosen = best_fit(fitters, judge, POLICIES)
    spent = judge.calls - before
    assert spent <= 4 * (2 * sum(mask.budget for mask in MASKS) + chosen.budget)
    for policy in (plain, chosen, *POLICIES):
        judge.quality(policy, used_to_choose=True)
    assert judge.calls == before + spent


def test_gain_is_in_decibels():
    assert gain(Quality(psnr=30.0), Quality(psnr=31.257)) == 1.26
    assert gain(Quality(psnr=30.0), Quality()) is None


HERE = Origin(denoiser="d", height=64, width=64, true_guidance=4.0)  # what a pipeline says of itself


def test_what_is_refined_at_the_usual_size_says_so():
    """Its noise levels are those of these runs, so the size has to be theirs as well."""
    before = Policy(mask=MASKS[0], origin=Origin(denoiser="d", height=96, width=96))
    after = origin_after(HERE, before, [{"prompt": "a"}], None)
    assert (after.height, after.width) == (64, 64)
    by_hand = Policy(mask=MASKS[0], origin=Origin())
    assert origin_after(HERE, by_hand, [{"prompt": "a"}], None).height is None


def test_true_guidance_that_a_refinement_begins_with_is_kept():
    before = Policy(mask=MASKS[0], origin=Origin(denoiser="d"))
    both = {"prompt": "a", "negative_prompt": "x", "true_cfg_scale": 2.5}
    assert origin_after(HERE, before, [both], None).true_guidance == 2.5
    assert origin_after(HERE, before, [{"prompt": "a"}], None).true_guidance is None
