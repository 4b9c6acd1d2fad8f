"""Good contents to begin with: small, and made by budcache itself."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["WORK", "climbed", "comparison", "comparison_folder", "ledger", "record", "saved_scheduler"]

STEPS, CALLS = 6, 3
WORK = {"model": "tiny", "steps": STEPS, "prompts": ["a", "b"]}


def _entry(method: str, budget: int) -> Any:
    from budcache import Mask
    from budcache.comparison.entry import Entry

    return Entry(
        method=method,
        title=method,
        budget=budget,
        calls=(budget, budget),
        seconds=(0.5, 0.6),
        full_seconds=(0.9, 0.9),
        full_calls=(STEPS, STEPS),
        timed_seconds=(0.4, 0.5),
        timed_calls=(budget, budget),
        masks=(Mask.uniform(STEPS, budget),) * 2,
        equivalents=(budget + 0.1, budget + 0.2),
        knob="threshold 0.1",
    )


def _conditions() -> Any:
    from budcache import Origin
    from budcache.comparison.result import Conditions

    return Conditions(
        origin=Origin(model="tiny", versions={"torch": "2.13.0"}),
        steps=STEPS,
        budgets=(CALLS,),
        prompts=("a cat", "two dogs"),
        seed=1,
        calibration=4,
        device="cpu",
        threads=1,
        dtype="float32",
    )


def comparison() -> Any:
    from budcache.comparison.entry import Measure
    from budcache.comparison.result import Comparison, LeftOut, Tried

    entries = [_entry(*each) for each in (("full", STEPS), ("budcache", CALLS), ("teacache", CALLS))]
    valued = [each.model_copy(update={"values": {"psnr": (30.0, 31.5)}}) for each in entries]
    valued[2] = valued[2].model_copy(update={"second": valued[1]})
    return Comparison(
        **dict(_conditions()),
        measures=(Measure(name="psnr", title="PSNR", unit="dB", digits=2),),
        entries=tuple(valued),
        left_out=(LeftOut(method="dicache", title="DiCache", budgets=(CALLS,), reason="its trunk is not known."),),
        history=(Tried(budget=CALLS, loss=0.1, calls=10, phase="paths"),),
    )


def comparison_folder(path: Path) -> Path:
    import numpy as np

    from budcache.comparison.folder import Folder

    with Folder(path, {"model": "tiny", "seed": 1}) as folder:
        folder.begin(_conditions(), ["budcache", "teacache"], ["psnr"])
        for number, (method, budget) in enumerate((("full", STEPS), ("budcache", CALLS))):
            for sample in range(2):
                folder.keep(method, budget, sample, np.full((8, 8, 3), 0.1 * number, np.float32))
            folder.add(_entry(method, budget), "")
            folder.note(folder.drawn[method, budget], "psnr", [30.0, 31.0])
        folder.leave_out("teacache", "TeaCache", CALLS, "no threshold meets the budget.")
    return path


def scores(ask: Any) -> Any:
    """Two samples of a toy, with everything that a score can have."""
    from dataclasses import replace

    from budcache.rows import Row
    from budcache.testing import toy_score

    for mask in ask.masks:
        found = toy_score(STEPS)(mask)
        rows = tuple(Row(outputs=(1.0,), noise=0.1) for _ in range(mask.budget))
        arrivals = tuple(errors and (*errors, 0.2) for errors in found.arrivals)
        yield replace(found, losses=(*found.losses, 0.2), arrivals=arrivals, rows=rows, ratios=(30.0, 31.0))


def climbed(ledger: Any) -> Any:
    """The ladder searches with a ledger: it uses every part of what the ledger knows."""
    from budcache.strategies import STRATEGIES, drive

    return drive(STRATEGIES["ladder"], ledger.remembering(scores, lambda: 3), steps=STEPS, budgets=[CALLS])


def ledger(path: Path) -> Path:
    from budcache.strategies import Ledger

    made = Ledger(path, WORK)
    climbed(made)
    made.note(20)
    made.close()
    return path


def record(path: Path) -> Path:
    import numpy as np

    from budcache import Origin, Record
    from budcache.records.gram import Grams
    from budcache.records.record import Runs

    half = np.random.default_rng(0).standard_normal((3, 2 * STEPS + 1, 40))
    grams = Grams(np.linspace(1, 0, STEPS + 1), half @ half.transpose(0, 2, 1))
    origin = Origin(model="tiny", scheduler="FlowMatchEulerDiscreteScheduler", guidance=3.5)
    return Record([Runs(origin, grams), Runs(origin.model_copy(update={"guidance": 5.0}), grams)]).save(path)


def saved_scheduler() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler

    from budcache import BudcacheScheduler, Mask, Policy

    made = BudcacheScheduler(FlowMatchEulerDiscreteScheduler(shift=3.0), Policy(mask=Mask.uniform(STEPS, CALLS)), STEPS)
    with tempfile.TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return json.loads((Path(folder) / "scheduler_config.json").read_text())
