"""The search that one process and all kinds of workers are to end alike, and what is compared of it."""

from __future__ import annotations

import json

from budcache.models import prompts

MODEL = "tiny-flux"
STEPS = 8
TEXTS = prompts(MODEL, "calibration")
# Five samples to search on in runs of two, two and one, and two to judge by: no number of workers but one divides them.
SEARCH = {"steps": STEPS, "budgets": [3, 4], "prompts": TEXTS[:7], "selection": 2, "batch": 2, "refine": "full"}
# The same as a command.
COMMAND = (
    *("search", MODEL, "--steps", str(STEPS), "--budgets", "3,4", "--count", "7", "--selection", "2", "--batch", "2"),
    *("--refine", "full", "--out", "found.json"),
)


def moving(ladder):
    """What a ladder does and how good it is, whatever it cost."""
    return [rung.model_dump(exclude={"origin": {"calls"}, "refined": {"__all__": {"calls"}}}) for rung in ladder]


def scores(ledger):
    """What a ledger knows, whatever it cost."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    return [{key: value for key, value in line.items() if key != "calls"} for line in lines if "mask" in line]
