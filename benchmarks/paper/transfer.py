"""One policy carried over to other solvers, sizes and guidance scales, without searching again.

TeaCache is calibrated and tuned anew in every setting, which is more than the policies get. A mask fits any solver but
fitted blends do not, so on other solvers budcache keeps its mask and fits the blends again (no search).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import wraps
from typing import Any

from common import Lab
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler
from published import TRANSFER, TRANSFER_SOURCE
from telling import WHO, Case, beats, left_out, side_by_side

import budcache
from budcache import Ladder

SOURCE = "as searched"


class IPNDM2(FlowMatchEulerDiscreteScheduler):
    """iPNDM(2M) for flow models, which diffusers does not have: `budcache.solvers.ipndm2` as a scheduler."""

    past: Any = None

    @wraps(FlowMatchEulerDiscreteScheduler.set_timesteps)
    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        self.past = None
        super().set_timesteps(*args, **kwargs)

    @wraps(FlowMatchEulerDiscreteScheduler.step)
    def step(self, model_output: Any, *args: Any, **kwargs: Any) -> Any:
        slope = model_output if self.past is None else 1.5 * model_output - 0.5 * self.past
        self.past = model_output
        return super().step(slope, *args, **kwargs)


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("transfer", __doc__ or "", argv)
    budget, cases = lab.budgets[0], dict[str, Case]()
    policies, own, notes = lab.policies([budget]), lab.pipe.scheduler, list[str]()
    for name, scheduler, call in settings(lab):
        lab.pipe.scheduler, carried = scheduler, dict(policies)
        if scheduler is not own:
            carried["budcache"] = refitted(lab, name, policies["budcache"][budget])
        cases[name] = lab.compare(name, [budget], ["teacache"], carried, **call), budget
    lab.pipe.scheduler = own
    if len(cases) < 7:
        notes.append(
            "The solver was not changed: that is done for FlowMatchEulerDiscreteScheduler, and this is "
            f"{type(own).__name__}."
        )
    elsewhere = {name: case for name, case in cases.items() if name != SOURCE}
    claims = [
        beats(elsewhere, who, ["teacache"], "Table 3", f"Carried over, {name} is better than TeaCache in every setting")
        for who, name in WHO.items()
    ]
    text = "Carried over, budcache stays ahead of the published search"
    claims.append(beats(elsewhere, "budcache", ["authors"], "ours", text))
    table = side_by_side(f"One policy of {budget} calls; beside it {TRANSFER_SOURCE}", cases, TRANSFER, head="setting")
    lab.report([table], claims, notes + left_out(comparison for comparison, _ in cases.values()))


def settings(lab: Lab) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """The paper's settings, in proportion to this model's own."""
    own, pipe = lab.pipe.scheduler, lab.pipe
    yield SOURCE, own, {}
    if isinstance(own, FlowMatchEulerDiscreteScheduler):
        yield "iPNDM(2M)", IPNDM2.from_config(own.config), {}
        flow = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": own.config.shift}
        if own.config.use_dynamic_shifting:
            flow |= {"use_dynamic_shifting": True, "time_shift_type": own.config.time_shift_type}
        yield "DPM-Solver++(2M)", DPMSolverMultistepScheduler(**flow), {}
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


def refitted(lab: Lab, name: str, policy: budcache.Policy) -> Ladder:
    """The same mask with blends for the solver that the pipeline has now."""
    bare = policy.model_copy(update={"weights": None, "noise": None, "origin": None, "refined": ()})
    batch = min(lab.args.batch, len(lab.calibration))
    found, _ = lab.refined(
        f"fit for {name}",
        bare,
        lambda ladder, _: budcache.fit(
            lab.pipe, ladder, prompts=lab.calibration, batch=batch, call=lab.call, progress=False
        ),
    )
    return Ladder.of([found])


if __name__ == "__main__":
    main()
