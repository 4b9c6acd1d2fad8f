"""Kills while files are written, and journals cut at every byte: never half a file, never a line too few or too many.

python -m soak.writes               # 20 kills for each kind of file, and every byte of a real ledger
python -m soak.writes --count 5
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Callable
from functools import cache
from itertools import count as forever
from pathlib import Path
from typing import Any

from soak.common import MEMORY, ended, forked, main, require

SIZE = 300  # pixels a side, so that a picture takes a while to write


def ladder(path: Path, version: int) -> None:
    _ladder(version % 2).save(path)


@cache
def _ladder(version: int) -> Any:
    from budcache import Ladder, Mask, Policy

    return Ladder.of(Policy(mask=Mask.uniform(1000, 1 + version + each)) for each in range(0, 800, 2))


def record(path: Path, version: int) -> None:
    _record(version % 2).save(path)


@cache
def _record(version: int) -> Any:
    import numpy as np

    from budcache import Origin, Record
    from budcache.records.gram import Grams
    from budcache.records.record import Runs

    steps = 40
    half = np.random.default_rng(version).standard_normal((20, 2 * steps + 1, 90))
    grams = Grams(np.linspace(1, 0, steps + 1), half @ half.transpose(0, 2, 1))
    return Record([Runs(Origin(model=str(version)), grams)])


def page(path: Path, version: int) -> None:
    from budcache.storage.files import write_text

    write_text(path, str(version % 2) * 2_000_000)


def picture(path: Path, version: int) -> None:
    import numpy as np

    from budcache.storage import media

    media.save(media.to_picture(np.random.default_rng(version % 2).random((SIZE, SIZE, 3))), path)


KINDS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "ladder": ("a.ladder.json", ladder),
    "record": ("a.record", record),
    "page": ("a.html", page),
    "picture": ("a.png", picture),
}


def soak(seed: int, count: int) -> dict[str, Any]:
    """So many kills while each kind of file is written over and over, then a ledger cut at every byte."""
    chance, told = random.Random(seed), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, (file, write) in KINDS.items():
            told[name] = _killed(home / file, write, count, chance, home / "said.txt")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:  # thousands of syncs, and the cuts are the same anywhere
        told["ledger"] = _cut(Path(folder))
    return {"kills": sum(told[name]["kills"] for name in KINDS), **told}


def _killed(path: Path, write: Callable[[Path, int], None], count: int, chance: random.Random, said: Path) -> Any:
    whole = set()
    for version in range(2):
        write(path, version)
        whole.add(path.read_bytes())
    require(len(whole) == 2, f"{path.name}: both versions are the same")

    def over_and_over() -> None:
        for version in forever():
            write(path, version)

    killed = midway = 0
    for _ in range(count):
        code = ended(forked(over_and_over, said), after=chance.uniform(0.01, 0.3))
        require(code == -signal.SIGKILL, f"writing ended with {code}: {said.read_text() if said.exists() else ''}")
        killed += 1
        require(path.read_bytes() in whole, f"{path.name} is half a file after a kill")
        for left in path.parent.glob(f".{path.stem}*"):
            midway += 1  # killed between the first byte and the new name
            left.unlink()
    return {"kills": killed, "in_the_middle_of_a_file": midway, "bytes": path.stat().st_size}


def _cut(home: Path) -> dict[str, Any]:
    """A real ledger, cut behind every byte as by a power cut: whole lines are kept, and the rest can be added again."""
    from budcache import Mask
    from budcache.calibration.score import Score
    from budcache.strategies import Ledger
    from budcache.strategies.strategy import Ask

    masks = [Mask.uniform(8, budget) for budget in range(1, 8)]

    def scored(ask: Any) -> Any:
        for mask in ask.masks:
            reached, losses = mask.computed[-1] + 1, (mask.budget / 3, 1e-3)
            yield Score(losses, (*[None] * reached, *[losses] * (len(mask) + 1 - reached)))

    def written(path: Path) -> int:
        """Go on with a ledger; how many of its scores were there."""
        ledger = Ledger(path, {"model": "tiny", "steps": 8})
        try:
            known = len(ledger.known)
            list(ledger.remembering(scored, lambda: 1)(Ask(tuple(masks), "soak")))
        finally:
            ledger.close()
        return known

    whole = home / "whole.ledger.jsonl"
    written(whole)
    data = whole.read_bytes()
    lines = data.splitlines(keepends=True)
    require(len(lines) == 1 + len(masks), "the ledger has a line for each mask")
    place = home / "cut.ledger.jsonl"
    for cut in range(len(data) + 1):
        place.write_bytes(data[:cut])
        expected = max(0, data[:cut].count(b"\n") - 1)
        require(written(place) == expected, f"cut behind byte {cut}, a ledger forgets or invents scores")
        found = place.read_bytes().splitlines(keepends=True)
        require(found[: 1 + expected] == lines[: 1 + expected], f"cut behind byte {cut}, what was whole was changed")
        require(len(found) == len(lines), f"cut behind byte {cut}, the ledger did not go on to its end")
    return {"cuts": len(data) + 1, "lines": len(lines)}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("writes", __doc__, soak, 20)
