"""Trouble with disks and files while a job writes: a sentence, and nothing that was there is lost.

Every kind of file is written into a full disk (/dev/full's error at every write that a file takes, in turn), a folder
that may only be read, one that vanishes, and one whose renames fail as they do over a network. A ledger goes on after
its disk was full, and refuses a second process; a ledger and a comparison say it when their folder vanishes. Clocks
that go backwards are not among it: nothing of ours asks for the time of day (`tests/soak/test_supply.py`).

    python -m soak.disks               # 20 rounds
    python -m soak.disks --count 2
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from soak.common import ended, forked, main, require
from soak.examples import WORK
from soak.writes import KINDS

NETWORK = (errno.ESTALE, errno.EIO, errno.EBUSY, errno.EXDEV, errno.ENOENT)


@contextmanager
def refused(path: Path, what: str) -> Iterator[None]:
    """Within, one sentence is owed that names the file; afterwards it is what it was, and nothing lies beside it."""
    from budcache.errors import FileError

    before, beside = path.read_bytes() if path.exists() else None, _hidden(path)
    try:
        yield
        require(False, f"{what}: nothing was said of {path.name}")
    except FileError as error:
        require("\n" not in str(error) and path.name in str(error), f"{what}: {error}")
    require((path.read_bytes() if path.exists() else None) == before, f"{what}: {path.name} is not what it was")
    require(_hidden(path) <= beside, f"{what}: {_hidden(path) - beside} is left")


def _hidden(path: Path) -> set[str]:
    """Files under temporary names; a ledger's lock is hidden, too, and stays."""
    return {each.name for each in path.parent.glob(".*")}


def full(path: Path, write: Callable[[Path, int], None], chance: random.Random) -> None:
    """No room behind some byte: the system's own error, by a limit on the size of files."""
    size = path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (chance.randrange(1, size), hard))
    try:
        with refused(path, "full disk"):
            write(path, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def read_only(path: Path, write: Callable[[Path, int], None], chance: random.Random) -> None:
    """Root may write anywhere, so what the system says to others is said by hand where this runs as root."""
    if os.geteuid():
        path.parent.chmod(0o555)
        try:
            with refused(path, "read-only folder"):
                write(path, 1)
        finally:
            path.parent.chmod(0o755)
    else:
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with patch("tempfile.mkstemp", side_effect=denied), refused(path, "read-only folder"):
            write(path, 1)


def vanished(path: Path, write: Callable[[Path, int], None], chance: random.Random) -> None:
    """The folder is removed between the first byte and the new name; what lay in it is gone, but not by us."""
    stock, home = os.fsync, path.parent / "gone"

    def sync(descriptor: int) -> None:
        stock(descriptor)
        shutil.rmtree(home, ignore_errors=True)

    with patch("os.fsync", sync), refused(home / path.name, "vanished folder"):
        write(home / path.name, 1)


def renamed(path: Path, write: Callable[[Path, int], None], chance: random.Random) -> None:
    """The new name fails, as it may over a network."""
    number = chance.choice(NETWORK)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    with patch("os.replace", fail), patch("pathlib.Path.replace", fail), refused(path, f"rename: {number}"):
        write(path, 1)


def unsynced(path: Path, write: Callable[[Path, int], None], chance: random.Random) -> None:
    """The disk says only when it is synced that it could not keep what was written."""
    stock = os.fsync

    def fail(descriptor: int) -> None:
        stock(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with patch("os.fsync", fail), refused(path, "sync"):
        write(path, 1)


TROUBLE = {"full": full, "read-only": read_only, "vanished": vanished, "renamed": renamed, "unsynced": unsynced}


def soak(seed: int, count: int) -> dict[str, Any]:
    """So many rounds of every trouble with every kind of file, and with a ledger."""
    chance, made = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for file, write in KINDS.values():
            write(home / file, 0)
        for _ in range(count):
            for file, write in KINDS.values():
                for name, trouble in TROUBLE.items():
                    trouble(home / file, write, chance)
                    made[name] += 1
            _ledger(home, chance, made)
            _journals_vanish(home, chance, made)
    return {"troubles": sum(made.values()), **made}


def _scores(path: Path, masks: list[Any], watch: Callable[[], Any] = bool) -> int:
    """Score masks with a ledger, as a search does; how many it knew."""
    from budcache.calibration.score import Score
    from budcache.strategies import Ledger
    from budcache.strategies.strategy import Ask

    def scored(ask: Any) -> Any:
        for mask in ask.masks:
            watch()
            yield Score((1 / mask.budget,), ())

    ledger = Ledger(path, WORK)
    try:
        known = len(ledger.known)
        list(ledger.remembering(scored, lambda: 1)(Ask(tuple(masks), "soak")))
    finally:
        ledger.close()
    return known


def _ledger(home: Path, chance: random.Random, made: Counter[str]) -> None:
    from budcache import Mask
    from budcache.errors import FileError

    path, masks = home / "a.ledger.jsonl", [Mask.uniform(12, budget) for budget in range(1, 12)]
    path.unlink(missing_ok=True)
    _scores(path, masks[:4])
    kept = path.read_bytes()
    # The disk runs full in the middle of a line; what was whole stays, and the same search goes on when there is room.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(kept) + chance.randrange(1, 200), hard))
    try:
        _scores(path, masks)
        require(False, "a full disk: nothing was said of the ledger")
    except FileError as error:
        require("make room and run the same command again" in str(error), str(error))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    require(path.read_bytes().startswith(kept), "a full disk took lines of a ledger away")
    made["ledger full"] += 1
    require(_scores(path, masks) >= 4, "a ledger has forgotten scores")
    require(_scores(path, masks) == len(masks), "a ledger has forgotten scores")
    # Two searches on one ledger: the second is told, and the first goes on.
    said = home / "said.txt"
    said.unlink(missing_ok=True)
    from budcache.strategies import Ledger

    first = Ledger(path, WORK)
    try:
        require(ended(forked(lambda: _scores(path, masks), said)) == 1, "two searches had one ledger")
        require("in use by another process" in said.read_text(), said.read_text())
    finally:
        first.close()
    require(_scores(path, masks) == len(masks), "a ledger has forgotten scores")
    made["two searches"] += 1


def _journals_vanish(home: Path, chance: random.Random, made: Counter[str]) -> None:
    """The folder of a ledger, and of a comparison, is removed while they are at work: said at the next line."""
    from budcache import Mask
    from budcache.comparison.folder import Folder
    from soak.examples import comparison_folder

    place, masks, left = home / "gone", [Mask.uniform(12, budget) for budget in range(1, 12)], chance.randrange(1, 11)

    def vanish() -> None:
        nonlocal left
        left -= 1
        if not left:
            shutil.rmtree(place)

    with refused(place / "a.ledger.jsonl", "vanished folder of a ledger"):
        _scores(place / "a.ledger.jsonl", masks, vanish)
    comparison_folder(place)
    with Folder.reopened(place) as folder:
        shutil.rmtree(place)
        with refused(place / "drawn.jsonl", "vanished folder of a comparison"):
            folder.leave_out("dicache", "DiCache", 2, "its trunk is not known.")
    made["journal vanished"] += 2


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("disks", __doc__, soak, 20)
