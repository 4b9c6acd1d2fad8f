"""Videos: one policy at other guidance scales, numbers of frames and sizes.

Two policies are carried over whole: one learned at the model's own settings, and one learned on a mix of guidance
scales whose weights look at the sample (F11). TeaCache is calibrated and tuned anew in every setting, which is more
than policies get. The paper shows this for pictures only (Table 11).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from common import VIDEO_RUNGS, Lab
from telling import Case, beats, left_out, side_by_side
from transfer import size

OWN, MIXED = "policy:budcache, fitted", "policy:budcache, fitted on a mix"
SCALES, LENGTHS = (3.0, 5.0, 7.0), (9, 13)


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab(
        "video_settings",
        __doc__ or "",
        argv,
        steps=(50, 6),
        budgets=((15,), (3,)),
        evaluation=16,
        model="tiny-wan",
        rungs=VIDEO_RUNGS,
        learn=16,
    )
    budget, cases = lab.budgets[0], dict[str, Case]()
    policies = {
        "budcache-plain": lab.ours(fit=False).ladder,
        OWN: lab.search("ours-fit", lab.calibration, lab.rungs, refine="fit").ladder,
        MIXED: mixed(lab, budget),
    }
    for name, call in settings(lab):
        cases[name] = lab.compare(name, [budget], ["teacache"], policies, **call), budget
    elsewhere = {name: case for name, case in cases.items() if name != "as searched"}
    better = "is better than TeaCache, which is tuned anew there"
    claims = [
        beats(elsewhere, OWN, ["teacache"], "ours", f"Carried over whole, budcache, fitted, {better}"),
        beats(elsewhere, MIXED, ["teacache"], "ours", f"Fitted on a mix of guidance scales, budcache {better}"),
        beats(
            {name: case for name, case in elsewhere.items() if name.startswith("guidance")},
            MIXED,
            [OWN],
            "ours",
            "At other guidance scales the policy learned on a mix is better than the one learned at one",
        ),
    ]
    made = {"teacache": "tuned anew", "budcache-plain": "carried over", OWN: "carried over", MIXED: "carried over"}
    title = f"One policy of {budget} of {lab.steps} calls"
    table = side_by_side(title, cases, {}, head="setting", made=lambda _, method: made.get(method, ""))
    lab.report([table], claims, left_out(found for found, _ in cases.values()))


def mixed(lab: Lab, budget: int) -> Any:
    """A ladder learned on all guidance scales in turn, as many samples as the other."""
    samples = [
        {"prompt": prompt, **lab.call, "guidance_scale": SCALES[i % len(SCALES)]}
        for i, prompt in enumerate(lab.calibration)
    ]
    return lab.search("ours-mix", lab.calibration, [budget], samples=samples, refine="fit").ladder


def settings(lab: Lab) -> Iterator[tuple[str, dict[str, Any]]]:
    """Guidance below and above the model's own, shorter clips, a wider frame."""
    own = inspect.signature(type(lab.pipe).__call__).parameters
    yield "as searched", {}
    for scale in SCALES:
        if scale != lab.call.get("guidance_scale", own["guidance_scale"].default):
            yield f"guidance {scale:g}", {"guidance_scale": scale}
    for frames in LENGTHS if "num_frames" in own else ():
        yield f"{frames} frames", {"num_frames": frames}
    height, width, unit = size(lab.pipe, lab.call)
    yield "half as wide again", {"height": height, "width": max(round(1.5 * width / unit), 1) * unit}


if __name__ == "__main__":
    main()
