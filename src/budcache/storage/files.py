"""Reading and writing the files that people pass around: nothing executed, nothing half written."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from budcache.errors import FileError, PolicyError
from budcache.wording import quote

__all__ = ["json_text", "read_json", "replacing", "sync_folder", "write_json", "write_text"]

MAX_FILE_BYTES = 8_000_000


def read_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file strictly: no NaN, no field twice, no file too large to be one of ours."""
    source = Path(path)
    text = _text(source)

    def refuse_constant(name: str) -> None:
        raise PolicyError(f"{source} contains {name}, which is not a number. Search or fit the policy again.")

    def refuse_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise PolicyError(f"{source} has the field {quote(key)} twice. Remove one of them.")
            found[key] = value
        return found

    try:
        return json.loads(text, parse_constant=refuse_constant, object_pairs_hook=refuse_twins)
    except PolicyError:
        raise
    except json.JSONDecodeError as error:
        if source.suffix == ".jsonl":
            raise PolicyError(
                f"{source} is a ledger, not a policy. Name the .json file that it was kept for."
            ) from None
        what = error.msg.removesuffix(" at")  # some of Python's sentences go on with the place themselves
        raise PolicyError(
            f"{source} is not valid JSON: {what} at line {error.lineno}, column {error.colno}. "
            "Is it the right file, and all of it?"
        ) from None
    except (RecursionError, ValueError):
        raise PolicyError(
            f"{source} is nested too deep or has a number too large to read. Is this the right file?"
        ) from None


def _text(source: Path) -> str:
    try:
        if source.is_dir():
            raise FileError(f"{source} is a folder. Name the policy file in it.")
        if source.is_fifo():  # to open it would be to wait for whoever writes, perhaps for ever
            raise FileError(f"{source} is a pipe. Write what comes out of it into a file, and name that.")
        # Bounded by what is read, not by the size it states: a device states 0 and never ends.
        with source.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileError:
        raise
    except FileNotFoundError:
        raise FileError(f"there is no file {source}. Check the path, or make one with `budcache search`.") from None
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise FileError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise PolicyError(
            f"{source} has more than {MAX_FILE_BYTES} bytes; a policy file has a few thousand. Is this the right file?"
        )
    try:
        return content.decode("utf-8-sig")  # some editors put a byte order mark first
    except UnicodeDecodeError:
        raise PolicyError(f"{source} is not text, so not a policy file. Is this the right file?") from None


def write_json(path: str | os.PathLike[str], data: object) -> Path:
    """Write `data` as JSON for people to read; the file is replaced whole or not at all."""
    try:
        text = json_text(data)
    except ValueError as error:
        raise PolicyError(f"{path} cannot be written: {error}.") from None
    return write_text(path, text)


def json_text(data: object) -> str:
    """`data` as JSON for people to read; `ValueError` for what is not a finite number."""
    text = json.dumps(data, indent=2, allow_nan=False)
    # Rows of numbers read better on one line than one number a line.
    # Line breaks never stand inside a JSON string, so what people wrote is not touched.
    rows = re.sub(r"\[\n\s*([-+\d.eE,\s]+?)\n\s*\]", lambda row: f"[{' '.join(row[1].split())}]", text)
    return rows + "\n"


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file; it is replaced whole or not at all, and its folder is made if it is missing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write in the place of `path`, which it takes when the block ends; on an error `path` stays as it was.

    It lies in the same folder, which is made if it is not there, and has the same ending.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a device would be replaced by a file
            raise OSError("it is a folder or a device")
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{target.stem[:100]}.", suffix=target.suffix, dir=target.parent)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        raise _unwritable(target, error) from None
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())  # or a power cut could leave the new name with nothing in it
        temporary.chmod(0o644)  # a temporary file is private; what we write is meant to be shared
        temporary.replace(target)
        sync_folder(target.parent)
    except FileError:
        raise
    except OSError as error:
        raise _unwritable(target, error) from None
    finally:  # also when interrupted
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk, too, where the system can do that for folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _unwritable(target: Path, error: Exception) -> FileError:
    reason = getattr(error, "strerror", None) or error
    return FileError(f"{target} cannot be written: {reason}. Choose another place.")
