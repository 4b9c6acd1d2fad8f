"""Adds up the results of soaks that were run in parts, each with a seed of its own: one JSON line for each soak.

for seed in 0 1 2 3 4; do python -m soak.threads --seed $seed --count 2000 >> parts.jsonl; done
python -m soak.total parts.jsonl
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

MOST = ("slowest_ms", "memory_grown_mb", "process_grown_mb", "undisturbed_seconds", "threads")  # the others add up
TIMED = "of_processor"  # a part that has it is the time of one thing, measured several times: the least counts


def added(one: Any, other: Any, name: str = "") -> Any:
    """Two results as one."""
    if isinstance(one, dict) and isinstance(other, dict):
        if TIMED in one and TIMED in other:
            return {each: min(one[each], other[each]) for each in one}
        names = {**one, **other}
        return {each: added(one.get(each), other.get(each), each) for each in names}
    if one is None or other is None:
        return other if one is None else one
    if name in ("seed", "python"):
        return one if one == other else f"{one}, {other}"
    if isinstance(one, int | float) and isinstance(other, int | float):
        return max(one, other) if name in MOST else one + other
    return one if one == other else f"{one}; {other}"


def total(lines: list[str]) -> list[dict[str, Any]]:
    """One result for each soak, in the order in which they come."""
    found: dict[str, Any] = {}
    for line in lines:
        part = json.loads(line)
        name = part.pop("soak")
        found[name] = added(found[name], {**part, "parts": 1}) if name in found else {**part, "parts": 1}
    return [{"soak": name, **each} for name, each in found.items()]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    lines = [line for path in parser.parse_args().files for line in path.read_text().splitlines() if line.strip()]
    results = total(lines)
    sys.stdout.write("".join(json.dumps(each) + "\n" for each in results))
    sys.exit(any(each.get("broken") for each in results))
