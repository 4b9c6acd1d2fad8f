"""Downloads from the hub, hostile in what the hub says of the file and in the file itself; no network is asked.

One is kept as one file: the hub's answer as a line of JSON, then the bytes of `ladder.json`. To read it, the bytes are
laid into a cache of the hub's own form, and the two calls that would ask the hub are answered from here.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from soak.mutations import TEXTS, mutated, written

__all__ = ["download_read", "spoilt_download"]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ANSWER = {"size": 1000, "etag": "abc", "commit_hash": COMMIT}
SIZES = (None, -1, 0, 8_000_001, 10**12, 2**64)
NAMES = (None, *TEXTS)


def spoilt_download(tree: Any, home: Path, chance: random.Random) -> Path:
    """Mostly the file is hostile, now and then the headers that huggingface_hub takes the answer from."""
    answer: Any = dict(ANSWER)
    if chance.random() < 0.2:
        name = chance.choice(list(answer))
        answer[name] = chance.choice(SIZES if name == "size" else NAMES)
    path = home / "a.download"
    path.write_bytes(json.dumps(answer).encode() + b"\n" + written(mutated(tree, chance), chance))
    return path


def download_read(path: Path) -> None:
    """As `Ladder.from_pretrained("me/ladder")` reads it."""
    import huggingface_hub

    from budcache.chosen import from_pretrained

    answer, _, data = path.read_bytes().partition(b"\n")
    cache = path.parent / "cache"
    repository = cache / "models--me--ladder"
    for file, text in (("refs/main", COMMIT.encode()), (f"snapshots/{COMMIT}/ladder.json", data)):
        (repository / file).parent.mkdir(parents=True, exist_ok=True)
        (repository / file).write_bytes(text)
    about = SimpleNamespace(**{**dict.fromkeys(ANSWER), **json.loads(answer)})
    stock = huggingface_hub.hf_hub_download

    def from_cache(*args: Any, **more: Any) -> Any:
        return stock(*args, **{**more, "local_files_only": True})

    with (
        patch.object(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: about),
        patch.object(huggingface_hub, "hf_hub_download", from_cache),
    ):
        found = from_pretrained("me/ladder", cache_dir=cache)
    str(found), hash(found)
