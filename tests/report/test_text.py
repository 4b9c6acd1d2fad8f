"""Policies as text: marks are explained, ranges named, and gains said of the prompts that they were measured on."""

from __future__ import annotations

from rich.console import Console

from budcache import Ladder, Mask, Origin, Policy
from budcache.policy import Quality, Refined
from budcache.report.text import describe, strip

FEATURES = {"middle": [0.0] * 3, "spread": [1.0] * 3, "slopes": [[0.0] * 3] * 2}
PLAIN = Policy(mask=Mask.parse("100"))


def shown(policy, width=200):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(describe(policy))
    return capture.get()


def test_marks_of_blends_are_explained_where_they_stand():
    rows = [{"outputs": [1.0], "features": FEATURES}]
    text = shown(PLAIN.model_copy(update={"rows": rows}))
    assert "blend 1+ f" in text and "+ and the initial noise" in text and "f weights that look at the sample" in text
    assert "guidance apart" not in text
    assert "blend N" not in shown(PLAIN)


def test_a_range_of_guidance_is_shown():
    assert "1.5 to 7" in shown(PLAIN.model_copy(update={"origin": Origin(ranges={"guidance": (1.5, 7.0)})}))


def test_a_gain_on_the_samples_fitted_on_is_not_called_held_out():
    line = Refined(how="align", prompts=4, calls=9, gain=-0.01)
    for used, says in ((True, "gain by it, same prompts"), (None, "gain by it, other prompts")):
        text = shown(PLAIN.model_copy(update={"refined": [line], "quality": Quality(psnr=30.0, used_to_fit=used)}))
        assert says in text and "+0.0 dB" in text and "-0.0" not in text


def test_no_number_of_fitted_samples_stands_there_without_saying_so():
    found = Quality(psnr=38.66, psnr_error=1.9, samples=4, used_to_choose=True)
    held_out, fitted = (
        PLAIN.model_copy(update={"quality": found.model_copy(update={"used_to_fit": used})}) for used in (False, True)
    )
    assert "38.7 ± 1.9" in shown(held_out) and "< 38.7" not in shown(held_out)
    assert "< 38.7" in shown(fitted) and "± 1.9" not in shown(fitted)
    assert "on new prompts expect 4 to 6 dB less" in " ".join(shown(fitted).split())
    assert str(held_out).endswith("38.7 ± 1.9 dB (4 samples)")
    assert str(fitted).endswith("< 38.7 dB (4 samples that it was fitted on)")
    assert "&lt; 38.7 dB (4 samples that it was fitted on)" in fitted._repr_html_()


def test_a_gain_is_over_plain_reuse_where_that_was_measured():
    line, known = Refined(how="rows", gain=0.4), Quality(psnr=40.0, psnr_plain=30.5)
    text = shown(PLAIN.model_copy(update={"weights": ((1.1,),), "refined": [line], "quality": known}))
    assert "+9.5" in text and "gain over repeating outputs at the same steps" in text
    before = shown(PLAIN.model_copy(update={"refined": [line], "quality": Quality(psnr=40.0)}))
    assert "+0.4" in before and "over repeating" not in before


def test_masks_of_28_steps_stay_in_one_piece_on_80_columns():
    mask = Mask.parse("1100100100100100100100101011")
    found = Quality(psnr=51.8, psnr_error=10.2, psnr_plain=39.4, calibration_loss=1.83e-4, samples=4)
    rows = [{"outputs": [1.0] * min(place + 1, 12)} for place in range(mask.budget)]
    ladder = Ladder.of([Policy(mask=mask, rows=rows, quality=found), Policy(mask=Mask.full(28), quality=found)])
    for width, shows in ((200, "loss"), (80, "fewer"), (60, "steps")):
        text = shown(ladder, width)
        assert strip(mask) in text and shows in text and ("loss on the others" in text) == (width == 200)
        assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert "loss" not in shown(ladder, 80) and "fewer" not in shown(ladder, 60)
