"""The numbers of a comparison inside its page, so that they can be saved from it: small, and made for the script."""

from __future__ import annotations

import base64
import gzip
import json

from budcache.comparison.result import Comparison
from budcache.comparison.table import rows

__all__ = ["packed"]

MOST = 1_000_000  # letters; more than that would make the page heavy


def packed(comparison: Comparison) -> str:
    """The comparison as its JSON file has it, and the rows of its CSV, compressed; nothing where that is too long."""
    shares = [entry.share for entry in comparison.entries]  # of second settings
    whole = comparison.model_dump(mode="json", exclude_none=True)
    data = {"comparison": whole, "rows": rows(comparison), "shares": shares}
    small = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)  # the same page every time
    text = base64.b64encode(small).decode()
    return text if len(text) <= MOST else ""
