"""Prompt files: plain text, JSONL with `prompt`, CSV with `caption`. And two sets of our own, by name."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

from budcache.errors import FileError, SearchError
from budcache.wording import nearest, quote

__all__ = ["SETS", "TRIED", "prompts", "read_prompts"]

SETS = ("images", "videos")
TRIED = ("a lighthouse by the sea at dusk", "a bowl of fruit on a wooden table")  # to try or time something with


def prompts(name: str) -> list[str]:
    """A set of 32 prompts to calibrate on, as different as users' are: `"images"` or `"videos"`.

    Your own are better, if you have some: a policy is best at what it was made on.
    """
    if name not in SETS:
        raise SearchError(f"there is no set of prompts {quote(name)}. {nearest(name, SETS)}")
    return read_prompts(Path(__file__).parent / "sets" / f"{name}.txt")


def read_prompts(path: str | os.PathLike[str]) -> list[str]:
    """The prompts in a file, whose ending says how they are written; or one of our sets, if there is no such file."""
    source = Path(path)
    if str(source) in SETS and not source.is_file():
        return prompts(str(source))
    try:
        text = source.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise SearchError(f"the prompt file {source} is not UTF-8 text. Save it as such.") from None
    except OSError as error:
        raise FileError(
            f"the prompt file {source} cannot be read: {error.strerror or error}. Check the path."
        ) from None
    kind = source.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        # Only "\n" ends a line: other separators may stand inside a JSON text.
        found = [_from_json(line, number, source) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    elif kind == ".csv":
        found = _from_csv(text, source)
    else:
        found = text.split("\n")
    found = [prompt.strip() for prompt in found if prompt.strip()]
    if not found:
        raise SearchError(f"there are no prompts in {source}. Write one a line.")
    return found


def _from_csv(text: str, source: Path) -> list[str]:
    try:
        rows = csv.DictReader(io.StringIO(text))
        names = rows.fieldnames or []
        if "caption" not in names:
            there = ", ".join(map(quote, names[:8])) + ", ..." * (len(names) > 8) or "none at all"
            raise SearchError(f"{source} has no column 'caption', but {there}. Rename one.")
        return [row["caption"] or "" for row in rows]
    except csv.Error as error:
        raise SearchError(f"{source} cannot be read as CSV: {error}. Quote what holds commas or line ends.") from None


def _from_json(line: str, number: int, source: Path) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, TypeError, KeyError, RecursionError):
        prompt = None
    if not isinstance(prompt, str):
        raise SearchError(f'line {number} of {source} is not JSON with a text "prompt". Write {{"prompt": "..."}}.')
    return prompt
