"""One search, several sizes: on which noise levels should it be served where the size moves them?

FLUX shifts its levels by the number of tokens. A policy that was searched at 64x64 can be served at other sizes in two
ways: its rows on the levels that the pipeline has there (what budcache does), or on the search's own levels, installed
verbatim. Beside them stands a search that was made at that size. tiny-flux has so few tokens that FLUX's own settings
would hardly move its levels, so its scheduler is told to move them from 16 to 64 tokens as far as FLUX does from 256 to
4096: from 256x256 to 1024x1024 pixels.

`python benchmarks/sizes.py [FOLDER]`; every finished size is kept in the folder, so an interrupted run goes on. With
`--aligned` the same for noise levels that were learned by gradients: verbatim, or moved along with the pipeline's.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judging import Judge

import budcache
from budcache import Ladder, Policy, models

MODEL, STEPS, BUDGETS = "tiny-flux", 28, (6, 10)
CALIBRATION, EVALUATION = 8, 16
SEARCHED, SERVED = (64, 64), ((96, 64), (128, 64), (96, 96), (128, 128))


def pipeline() -> Any:
    """tiny-flux with levels that move."""
    torch.set_num_threads(1)
    pipe = models.load(MODEL)
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = type(pipe.scheduler).from_config(
        pipe.scheduler.config, base_image_seq_len=16, max_image_seq_len=64
    )
    return pipe


def searched(pipe: Any, height: int, width: int, refine: str = "fit") -> Ladder:
    """A search at a size."""
    prompts = models.prompts(MODEL, "calibration")[:CALIBRATION]
    call = {"height": height, "width": width}
    return budcache.search(
        pipe,
        steps=STEPS,
        budgets=BUDGETS,
        prompts=prompts,
        call=call,
        batch=4,
        selection=0,
        refine=refine,
        progress=False,  # type: ignore[arg-type]
    )


def verbatim(policy: Policy) -> Policy:
    """The same policy with the levels of its search, wherever it is served."""
    assert policy.origin is not None
    return policy.model_copy(update={"sigmas": policy.origin.levels})


def moved(policy: Policy, levels: tuple[float, ...]) -> Policy:
    """The same policy with its own levels moved as the pipeline's are."""
    assert policy.origin is not None and policy.sigmas is not None
    there = np.interp(policy.sigmas, policy.origin.levels[::-1], levels[::-1])
    return policy.model_copy(update={"sigmas": tuple(there.tolist())})


def figures(ratios: list[float]) -> dict[str, float]:
    """Mean and standard error."""
    return {
        "psnr": round(float(np.mean(ratios)), 2),
        "error": round(float(np.std(ratios, ddof=1) / len(ratios) ** 0.5), 2),
    }


def measured(pipe: Any, kinds: dict[str, Ladder], height: int, width: int) -> dict[str, Any]:
    """Every kind at a size."""
    judge = Judge(pipe, models.prompts(MODEL, "evaluation")[:EVALUATION], STEPS, height=height, width=width)
    return {name: {policy.budget: figures(judge.ratios(policy)) for policy in ladder} for name, ladder in kinds.items()}


def main() -> None:
    """Measure what is not in the folder yet, and print all of it as one line of JSON."""
    names = [name for name in sys.argv[1:] if not name.startswith("--")]
    folder = Path(names[0] if names else tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    aligned = "--aligned" in sys.argv
    pipe, kind = pipeline(), "aligned" if aligned else "rows"
    base = folder / f"{kind}.ladder.json"
    if not base.exists():
        made = searched(pipe, *SEARCHED, refine="none" if aligned else "fit")
        if aligned:
            prompts = models.prompts(MODEL, "calibration")[: 4 * CALIBRATION]
            call = {"height": SEARCHED[0], "width": SEARCHED[1]}
            made = budcache.align(pipe, made, prompts=prompts, call=call, rate=1e-2, progress=False)
        made.save(base)
    ladder, found = Ladder.load(base), {}
    for height, width in (SEARCHED, *SERVED):
        path = folder / f"{kind}-{height}x{width}.json"
        if not path.exists():
            with budcache.PipelineModel(pipe, steps=STEPS, prompt="", height=height, width=width) as model:
                levels = tuple(model.sigmas.tolist())
            if aligned:
                kinds = {
                    "masks alone": Ladder.of([rung.model_copy(update={"sigmas": None}) for rung in ladder]),
                    "learned levels, verbatim": ladder,
                    "learned levels, moved": Ladder.of([moved(rung, levels) for rung in ladder if rung.sigmas]),
                }
            else:
                kinds = {
                    "rows on the levels there": ladder,
                    "rows on the search's levels": Ladder.of(map(verbatim, ladder)),
                    "searched there": searched(pipe, height, width),
                }
            row = measured(pipe, kinds, height, width)
            path.write_text(json.dumps({"mid level": round(levels[STEPS // 2], 4), **row}), encoding="utf-8")
            print(f"{height}x{width}", row, file=sys.stderr, flush=True)
        found[f"{height}x{width}"] = json.loads(path.read_text(encoding="utf-8"))
    print(
        json.dumps({"benchmark": f"sizes, {kind}", "model": MODEL, "steps": STEPS, "evaluation": EVALUATION, **found})
    )


if __name__ == "__main__":
    main()
