"""SIGKILL at random moments of search, fit, align, compare and recording: whoever goes on ends as if undisturbed.

Each job runs once undisturbed. Then it is killed at a moment drawn from the whole of its time, half of the times killed
again, and run to its end with the same arguments and the same files. The policy, comparison or record must be the same
to the last bit, but for what it cost and how long it took.

    python -m soak.kills               # 100 kills, 20 of each job
    python -m soak.kills --count 5     # one of each; with less, of the first jobs only
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from soak.common import ended, forked, main, require

STEPS, BUDGETS = 6, (2, 3)
WORDS = ["red apple", "cat face", "rocket"]
SIZE = {"height": 32, "width": 32}
Job = Callable[[Any, Path], None]


def search(pipe: Any, home: Path) -> None:
    import budcache

    how: dict[str, Any] = {"strategy": "ladder", "polish": 1, "selection": 1, "ledger": home / "a.ledger.jsonl"}
    found = budcache.search(pipe, steps=STEPS, budgets=BUDGETS, prompts=WORDS, progress=False, call=SIZE, **how)
    found.save(home / "found.json")


def fit(pipe: Any, home: Path) -> None:
    """It keeps no ledger: it starts afresh, and the file that it replaces stays whole until the new one is there."""
    import budcache

    found = home / "found.json"
    if not found.exists():
        budcache.Ladder.of(budcache.Policy(mask=budcache.Mask.uniform(STEPS, budget)) for budget in BUDGETS).save(found)
    masks = [budcache.Policy(mask=rung.mask) for rung in budcache.Ladder.load(found)]
    budcache.fit(pipe, budcache.Ladder.of(masks), prompts=WORDS, selection=1, progress=False, call=SIZE).save(found)


def align(pipe: Any, home: Path) -> None:
    """Both methods, one after the other, each with a ledger of its own."""
    import budcache

    plain = budcache.Policy(mask=budcache.Mask.uniform(STEPS, 3))
    learned = budcache.align(
        pipe, plain, method="gradient", prompts=WORDS, every=2, ledger=home / "a.jsonl", progress=False, call=SIZE
    )
    learned.save(home / "found.json")
    rows = [{"outputs": [1.0, *[0.0] * min(place, 2)], "noise": 0.0} for place in range(3)]
    fitted = plain.model_copy(update={"rows": rows})
    more: dict[str, Any] = {"prompts": WORDS[:2], "ledger": home / "b.jsonl", "call": SIZE}
    budcache.align(pipe, fitted, progress=False, **more).save(home / "newton.json")


def compare(pipe: Any, home: Path) -> None:
    import budcache

    budcache.compare(
        pipe,
        steps=STEPS,
        budgets=BUDGETS[:1],
        prompts=WORDS[:1],
        calibration=WORDS[1:],
        folder=home / "out",
        methods=["uniform", "teacache", "budcache"],
        timed=[],
        progress=False,
        call=SIZE,
    )


def record(pipe: Any, home: Path) -> None:
    """A program of a user's own: it writes its record down after every run, and goes on behind those that are in it."""
    import budcache

    kept = home / "runs.record"
    known = budcache.Record.load(kept) if kept.exists() else budcache.Record()
    for prompt in [*WORDS, *WORDS][len(known) :]:
        with budcache.recording(pipe, known):
            pipe(prompt, num_inference_steps=STEPS, generator=_generator(prompt), **SIZE)
        known.save(kept)
    known.ladder(BUDGETS).save(home / "found.json")


JOBS: dict[str, Job] = {"search": search, "fit": fit, "align": align, "compare": compare, "record": record}


def essence(home: Path) -> dict[str, Any]:
    """All that a job has left, but for what it cost and how long it took."""
    found: dict[str, Any] = {}
    for path in sorted(home.rglob("*")):
        name = path.relative_to(home).as_posix()
        if path.name.startswith("."):  # of a file that was being written when its process was killed; nobody reads it
            continue
        if path.suffix == ".json":
            found[name] = _timeless(json.loads(path.read_text()))
        elif path.suffix in (".png", ".npy", ".record"):
            found[name] = path.read_bytes()
    return found


def soak(seed: int, count: int) -> dict[str, Any]:
    """So many kills, as many of each job."""
    import torch

    import budcache

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    pipe = budcache.load("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    _load_everything()
    chance, told = random.Random(seed), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        each = max(1, count // len(JOBS))
        for name, job in list(JOBS.items())[:count]:
            told[name] = _soaked(name, lambda home, job=job: job(pipe, home), Path(folder), each, chance)
    return {"kills": sum(found["kills"] for found in told.values()), **told}


def _soaked(name: str, job: Callable[[Path], None], folder: Path, count: int, chance: random.Random) -> dict[str, Any]:
    whole, said = folder / f"{name}-whole", folder / f"{name}.txt"
    whole.mkdir()
    begin = time.monotonic()
    require(ended(forked(lambda: job(whole), said)) == 0, f"{name}: {_read(said)}")
    seconds, expected = time.monotonic() - begin, essence(whole)
    killed = resumed = 0
    home = folder / name
    while killed < count:
        home.mkdir()
        again = True
        while again and killed < count:
            code = ended(forked(lambda: job(home), said), after=chance.uniform(0, seconds))
            require(code in (0, -signal.SIGKILL), f"{name} ended with {code}: {_read(said)}")
            killed += code != 0
            again = chance.random() < 0.5
        require(ended(forked(lambda: job(home), said)) == 0, f"{name} could not go on: {_read(said)}")
        found = essence(home)
        different = [file for file in {*found, *expected} if found.get(file) != expected.get(file)]
        require(not different, f"{name} ended otherwise after a kill: {', '.join(sorted(different))}")
        resumed += 1
        shutil.rmtree(home)
    return {"kills": killed, "resumed": resumed, "undisturbed_seconds": round(seconds, 1)}


def _load_everything() -> None:
    """Once, so that no job spends its time on imports."""
    from PIL import Image

    import budcache
    import budcache.comparison.drawing
    import budcache.metrics.pixels
    import budcache.report.page
    import budcache.report.plots

    import_module("matplotlib.pyplot"), import_module("torchmetrics.functional.image")
    Image.init()
    for name in budcache.__all__:
        getattr(budcache, name)


def _timeless(data: Any) -> Any:
    """A file without the numbers that depend on when and how often it was made."""
    if isinstance(data, dict):
        costs = ("calls_made", "memory", "timed_calls", "full_calls", "learning_calls")
        kept = {name: each for name, each in data.items() if "seconds" not in name and name not in costs}
        kept = {name: each for name, each in kept.items() if not (name == "calls" and isinstance(each, int))}
        return {name: _timeless(each) for name, each in kept.items()}
    return [_timeless(each) for each in data] if isinstance(data, list) else data


def _generator(prompt: str) -> Any:
    import torch

    return torch.Generator().manual_seed(len(prompt))


def _read(said: Path) -> str:
    return said.read_text() if said.exists() else "it said nothing"


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("kills", __doc__, soak, 100)
