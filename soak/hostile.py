"""Hostile contents, in memory and as files: one sentence, at once, nothing executed, memory bounded.

Contents are made from good ones (see `mutations`), so that they come far into a reader. Each is read and, if it is
accepted, used. Any error but a `BudcacheError` of one line is a defect; so are more than a second of processor time, a
process started, code of no module run, a network asked, or a file written elsewhere.

    python -m soak.hostile                     # 10^6 in memory in all, and 10^4 files or folders of each kind
    python -m soak.hostile --count 10000       # a hundredth of both
    BUDCACHE_SOAK_KEEP=worst python -m soak.hostile    # keep what broke a promise, and the slowest of each kind
"""

from __future__ import annotations

import os
import pickle
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from soak.common import MEMORY, Broken, main, peak_bytes
from soak.mutations import mutated
from soak.readers import FILES, TREES, Reader

PER_FILE = 100  # as many in memory as one file or folder of every kind
SECOND, HANG = 1.0, 20
ROOM = 3_000_000_000  # bytes that the process may have on top; beyond it allocating fails
GROWTH = 400_000_000  # bytes that all of it may add to what the process had
WARM = 100  # contents of each kind before anything is timed
LOADED = ("torch", "diffusers.schedulers", "safetensors.torch", "PIL.Image", "yaml", "rich.console", "huggingface_hub")
TRACED = 200  # contents of each kind under which the covered lines are looked at
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
    "pickle.find_class",
)


class Watched:
    """What happens while hostile contents are read, as the interpreter tells it; a hook stays for the process."""

    def __init__(self, home: Path) -> None:
        self.home, self.on, self.seen = str(home), False, list[str]()
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in FORBIDDEN or (event == "exec" and not Path(args[0].co_filename).is_file()):  # a module is a file
            self.seen.append(f"{event} {str(args[:1])[:80]}")
        elif event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
            self.seen += [f"writes {args[0]}"] * (not str(args[0]).startswith((self.home, "/dev/null")))

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.seen.clear()
        self.on = True
        try:
            yield
        finally:
            self.on = False


class Case:
    """One kind of contents, read again and again."""

    def __init__(self, name: str, reader: Reader, home: Path, watched: Watched, chance: random.Random) -> None:
        self.name, self.reader, self.home, self.watched, self.chance = name, reader, home, watched, chance
        self.good = reader.good(home)
        self.outcomes: Counter[str] = Counter()
        self.broken: dict[str, Any] = {}
        self.slowest: tuple[float, Any] = (0.0, None)
        self.seconds = 0.0  # of processor time, for making and reading all of them

    def warm(self) -> None:
        """Everything that is loaded late is loaded now, so that it does not count as time."""
        for _ in range(WARM):
            try:
                self.reader.read(self.made())
            except Exception:  # what it raises is looked at later
                continue

    def made(self) -> Any:
        example = self.chance.choice(self.good)
        if self.reader.spoil is None:
            return mutated(example, self.chance)
        return self.reader.spoil(example, self.home, self.chance)

    def once(self) -> None:
        from budcache.errors import BudcacheError

        first = time.process_time()
        content, begin = self.made(), time.process_time()
        why = None
        signal.alarm(HANG)
        with self.watched.watching():
            try:
                self.reader.read(content)
                self.outcomes["accepted"] += 1
            except BudcacheError as error:
                self.outcomes["refused"] += 1
                text = str(error)
                if "\n" in text or not text.strip() or len(text) > 700:
                    why = f"not one sentence: {text[:90]!r}"
            except BaseException as error:
                why = f"{type(error).__name__}: {str(error)[:90]}"
        signal.alarm(0)
        end = time.process_time()
        took, self.seconds = end - begin, self.seconds + end - first
        if self.watched.seen:
            why = f"while reading: {self.watched.seen[0]}"
        if took > SECOND:
            why = f"took {took:.1f} s"
        if took > self.slowest[0]:
            self.slowest = took, self._kept(content)
        if why is not None:
            self.outcomes["broken"] += 1
            self.broken.setdefault(why, self._kept(content))

    def _kept(self, content: Any) -> Any:
        """The content itself: a file is about to be written over."""
        if not isinstance(content, Path):
            return content
        if content.is_file():
            return content.name, content.read_bytes()
        return content.name, {path.relative_to(content).as_posix(): path.read_bytes() for path in content.rglob("*.*")}

    def told(self) -> dict[str, Any]:
        return {
            **self.outcomes,
            "slowest_ms": round(1000 * self.slowest[0]),
            "processor_seconds": round(self.seconds, 1),
            **({"defects": list(self.broken)} if self.broken else {}),
        }


def soak(seed: int, count: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    limit = peak_bytes() + ROOM
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    files, cases = max(1, count // PER_FILE), dict[str, Case]()
    home = Path(tempfile.mkdtemp(dir=MEMORY))
    signal.signal(signal.SIGALRM, _hang)
    only = os.environ.get("BUDCACHE_SOAK_ONLY", "")
    try:
        watched, looking = Watched(home), _looking()
        for name, reader in (TREES | FILES).items():
            if only in name:
                cases[name] = Case(name, reader, home, watched, random.Random(f"{seed} {name}"))
        for module in LOADED:
            import_module(module)
        before = peak_bytes()  # of good contents; from here on they are hostile
        for case in cases.values():
            case.warm()
            for _ in range(min(TRACED, files)):
                case.once()
        lines = _covered(looking, cases)
        for name, case in cases.items():
            for _ in range(count // len(TREES) if name in TREES else files):
                case.once()
        grown = peak_bytes() - before
        keep = os.environ.get("BUDCACHE_SOAK_KEEP")
        if keep:
            _keep(Path(keep), cases)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    broken = {name: list(case.broken) for name, case in cases.items() if case.broken}
    if grown > GROWTH:
        broken["memory"] = [f"grew by {grown / 1e6:.0f} MB"]
    told = {
        "in_memory": sum(sum(case.outcomes.values()) for name, case in cases.items() if name in TREES),
        "files": sum(sum(case.outcomes.values()) for name, case in cases.items() if name in FILES),
        "memory_grown_mb": round(grown / 1e6),
        "covered": lines,
        "kinds": {name: case.told() for name, case in cases.items()},
    }
    return told | ({"broken": broken} if broken else {})


def _looking() -> Any:
    """Who looks which lines are run, from before they are imported; None where `coverage` is not installed."""
    try:
        from coverage import Coverage
    except ImportError:
        return None
    looking = Coverage(source=["budcache"], data_file=None)
    looking.start()
    return looking


def _covered(looking: Any, cases: dict[str, Case]) -> dict[str, str]:
    """The share of each reading module's lines that hostile contents come to; those that only write count, too."""
    if looking is None:
        return {}
    looking.stop()
    found = {}
    for module in sorted({module for case in cases.values() for module in case.reader.modules}):
        _, lines, _, missing, _ = looking.analysis2(str(import_module(module).__file__))
        found[module] = f"{100 * (1 - len(missing) / max(1, len(lines))):.0f} %"
    return found


def _hang(*_: object) -> None:
    raise Broken(f"hangs for {HANG} s")


def _keep(folder: Path, cases: dict[str, Case]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in cases.items():
        worst = [*case.broken.items(), ("slowest", case.slowest[1])]
        for number, each in enumerate(worst):
            (folder / f"{name}-{number}.pickle").write_bytes(pickle.dumps(each))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("hostile", __doc__, soak, 1_000_000)
