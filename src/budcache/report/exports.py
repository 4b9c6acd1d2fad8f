"""The numbers of a comparison inside its page, so that they can be saved from it: small, and made for the script."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

from budcache.chosen import load
from budcache.comparison.numbers import rows
from budcache.comparison.result import Comparison
from budcache.errors import BudcacheError

__all__ = ["packed", "policy_file"]

MOST = 1_000_000  # letters; more than that would make the page heavy
MOST_OF_A_POLICY = 200_000  # bytes


def policy_file(folder: Path, file: str | None) -> tuple[str, str] | None:
    """The name and the text of the policy that is put forward; None where it is not there, no policy, or too long."""
    path = folder / (file or "")
    if file is None or not path.is_file() or path.stat().st_size > MOST_OF_A_POLICY:
        return None
    try:
        load(path)
    except BudcacheError:
        return None
    return path.name, path.read_text(encoding="utf-8")


def packed(comparison: Comparison, policy: tuple[str, str] | None = None) -> str:
    """The comparison as its JSON file has it, the rows of its CSV and a policy file, compressed.

    Nothing where that is too long.
    """
    shares = [entry.share for entry in comparison.entries]  # of second settings
    whole = comparison.model_dump(mode="json", exclude_none=True)
    data = {"comparison": whole, "rows": rows(comparison), "shares": shares, "policy": policy}
    small = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)  # the same page every time
    text = base64.b64encode(small).decode()
    return text if len(text) <= MOST else ""
