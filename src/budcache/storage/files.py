"""Reading and writing the files that people pass around: nothing executed, nothing half written."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from budcache.errors import PolicyError
from budcache.wording import quote

__all__ = ["read_json", "write_json", "write_text"]

MAX_FILE_BYTES = 8_000_000


def read_json(path: str | os.PathLike[str]) -> object:
    """Decode a JSON file strictly: no NaN, no field twice, no file too large to be one of ours."""
    source = Path(path)
    try:
        if source.is_dir():
            raise PolicyError(f"{source} is a folder. Name the policy file in it.")
        # Bounded by what is read, not by the size it states: a device states 0 and never ends.
        with source.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise PolicyError(
                f"{source} has more than {MAX_FILE_BYTES} bytes; a policy file has a few thousand. "
                "Is this the right file?"
            )
        text = content.decode("utf-8-sig")  # some editors put a byte order mark first
    except FileNotFoundError:
        raise PolicyError(f"there is no file {source}. Check the path, or make one with `budcache search`.") from None
    except UnicodeDecodeError:
        raise PolicyError(f"{source} is not text, so not a policy file. Is this the right file?") from None
    except (OSError, ValueError) as error:
        raise PolicyError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}.") from None

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
    except json.JSONDecodeError as error:
        if source.suffix == ".jsonl":
            raise PolicyError(
                f"{source} is a ledger, not a policy. Name the .json file that it was kept for."
            ) from None
        raise PolicyError(
            f"{source} is not whole JSON: {error.msg} at line {error.lineno}, column {error.colno}. "
            "Is it the right file, and all of it?"
        ) from None
    except (RecursionError, ValueError):
        raise PolicyError(
            f"{source} is nested too deep or has a number too large to read. Is this the right file?"
        ) from None


def write_json(path: str | os.PathLike[str], data: object) -> Path:
    """Write `data` as JSON for people to read; the file is replaced whole or not at all."""
    try:
        text = json.dumps(data, indent=2, allow_nan=False)
    except ValueError as error:
        raise PolicyError(f"{path} cannot be written: {error}. Choose another place.") from None
    # Rows of numbers read better on one line than one number a line.
    # Line breaks never stand inside a JSON string, so what people wrote is not touched.
    text = re.sub(r"\[\n\s*([-+\d.eE,\s]+?)\n\s*\]", lambda row: f"[{' '.join(row[1].split())}]", text)
    return write_text(path, text + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file; it is replaced whole or not at all, and its folder is made if it is missing."""
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and not target.is_file():  # a device would be replaced by a file
            raise PolicyError(f"{target} cannot be written: it is a folder or a device. Choose another place.")
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, delete=False) as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(0o644)  # a temporary file is private; what is written here is meant to be shared
        temporary.replace(target)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PolicyError(f"{target} cannot be written: {reason}. Choose another place.") from None
    finally:  # also when interrupted
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return target
