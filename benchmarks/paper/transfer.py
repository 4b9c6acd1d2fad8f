"""One policy carried over to other solvers, sizes and guidance scales.

Each row says what is carried over and what is made anew. Masks are carried over everywhere. Fitted blends belong to a
solver, so where the solver changes there are two rows of budcache: its mask alone, with plain reuse, which is carried
over as the paper's is; and its mask with blends fitted again to the new solver, which is not. TeaCache is calibrated
and tuned anew in every setting, which is more than policies get.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from common import Lab
from diffusers import FlowMatchEulerDiscreteScheduler
from published import TRANSFER, TRANSFER_SOURCE
from telling import WHO, Case, beats, left_out, side_by_side

import budcache
from budcache import Ladder
from budcache.baselines.fewer import another_solver
from budcache.comparison.methods import METHODS

SOURCE, ANEW = "as searched", "tuned anew"
MASK, REFITTED = "policy:budcache's mask, plain", "policy:budcache, refitted"
SOLVERS = {METHODS[name]: name for name in ("ipndm", "dpmpp")}


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("transfer", __doc__ or "", argv, evaluation=64)
    budget, cases = lab.budgets[0], dict[str, Case]()
    policies, own, notes = lab.policies([budget]), lab.pipe.scheduler, list[str]()
    for name, scheduler, call in settings(lab):
        lab.pipe.scheduler, carried = scheduler, dict(policies)
        if scheduler is not own:
            fitted = carried.pop("budcache")[budget]
            carried[MASK] = Ladder.of([bare(fitted)])
            carried[REFITTED] = refitted(lab, name, fitted)
        cases[name] = lab.compare(name, [budget], ["teacache"], carried, **call), budget
    lab.pipe.scheduler = own
    if len(cases) < 7:
        notes.append(
            "The solver was not changed: that is done for FlowMatchEulerDiscreteScheduler, and this is "
            f"{type(own).__name__}."
        )
    elsewhere = {name: case for name, case in cases.items() if name != SOURCE}
    solvers = {name: case for name, case in elsewhere.items() if case[0].entry(MASK, budget)}
    same = {name: case for name, case in elsewhere.items() if name not in solvers}
    better = "is better than TeaCache, which is tuned anew there"
    claims = [
        beats(elsewhere, "authors", ["teacache"], "Table 3", f"Carried over, {WHO['authors']} {better}"),
        beats(same, "budcache", ["teacache"], "Table 3", f"Carried over whole, budcache {better}"),
        beats(solvers, MASK, ["teacache"], "Table 3", f"Carried over to another solver, budcache's mask {better}"),
        beats(solvers, REFITTED, ["teacache"], "ours", f"Its blends fitted again to the solver, budcache {better}"),
        beats(
            same, "budcache", ["authors"], "ours", "Carried over whole, budcache stays ahead of the published search"
        ),
    ]
    made = {"teacache": ANEW, "authors": "carried over", "budcache-plain": "carried over", MASK: "carried over"}
    made |= {"budcache": "carried over, blends too", REFITTED: "mask carried over, blends refitted"}
    title = f"One policy of {budget} calls; beside it {TRANSFER_SOURCE}"

    def how(case: str, method: str) -> str:
        return made.get(method, "") if case != SOURCE else "tuned here" if method == "teacache" else "searched here"

    table = side_by_side(title, cases, TRANSFER, head="setting", made=how)
    lab.report([table], claims, notes + left_out(comparison for comparison, _ in cases.values()))


def settings(lab: Lab) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The paper's settings, in proportion to this model's own."""
    own, pipe = lab.pipe.scheduler, lab.pipe
    yield SOURCE, own, {}
    if isinstance(own, FlowMatchEulerDiscreteScheduler):
        for name, solver in SOLVERS.items():
            yield name, another_solver(own, solver), {}
    height, width, unit = size(pipe, lab.call)

    def whole(pixels: float) -> int:
        return max(round(pixels / unit), 1) * unit

    yield "half the size", own, {"height": whole(height / 2), "width": whole(width / 2)}
    yield "three quarters of the height", own, {"height": whole(height * 3 / 4), "width": width}
    for scale in (5.0, 7.0):
        yield f"guidance {scale:g}", own, {"guidance_scale": scale}


def size(pipe: Any, call: dict[str, Any]) -> tuple[int, int, int]:
    """Height and width of what is drawn, and the pixels that a transformer's patches take; videos have other names."""
    scale = getattr(pipe, "vae_scale_factor", None) or pipe.vae_scale_factor_spatial
    own = inspect.signature(type(pipe).__call__).parameters
    usual = getattr(pipe, "default_sample_size", 64) * scale
    height, width = (call.get(side) or own[side].default or usual for side in ("height", "width"))
    return height, width, 2 * scale


def bare(policy: budcache.Policy) -> budcache.Policy:
    """The same mask with plain reuse."""
    return budcache.Policy(mask=policy.mask)


def refitted(lab: Lab, name: str, policy: budcache.Policy) -> Ladder:
    """The same mask with blends for the solver that the pipeline has now."""
    batch = min(lab.args.batch, len(lab.calibration))
    found, _ = lab.refined(
        f"fit for {name}",
        bare(policy),
        lambda ladder, _: budcache.fit(
            lab.pipe, ladder, prompts=lab.calibration, batch=batch, call=lab.call, progress=False
        ),
    )
    return Ladder.of([found])


if __name__ == "__main__":
    main()
