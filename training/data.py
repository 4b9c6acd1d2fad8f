"""The pictures and their captions: Google's emoji, fetched from npm by package name.

`python data.py RUN` leaves RUN/images.pt (uint8, N x 3 x 64 x 64, white background) and RUN/captions.json
(N lists of spellings, the first being the name the emoji goes by).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image

PACKAGE = "emoji-datasource-google@16.0.0"
CATEGORIES = {
    "Smileys & Emotion",
    "Animals & Nature",
    "Food & Drink",
    "Activities",
    "Travel & Places",
    "Objects",
}


def fetch(run: Path) -> Path:
    """The unpacked npm package, downloaded on first use."""
    folder = run / "package"
    if not folder.exists():
        run.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", PACKAGE, "--silent"], cwd=run, check=True, capture_output=True, text=True
        )
        with tarfile.open(run / packed.stdout.strip().splitlines()[-1]) as archive:
            archive.extractall(run, filter="data")
    return folder


def normalise(text: str) -> str:
    """Lower case, letters and digits, single spaces: `COUCH AND LAMP` and `couch_and_lamp` become one."""
    text = text.lower().replace("\u2019", "").replace("'", "").replace("&", " and ")
    return " ".join(re.findall(r"[a-z0-9]+", text))


def spellings(entry: dict) -> list[str]:
    """The names one emoji goes by, the best one first.

    The short name is what people type; the official name is often archaic ("SMILING FACE WITH OPEN MOUTH AND
    SMILING EYES"), so it comes after.
    """
    names = [*entry["short_names"], entry["name"].split(",")[0]]
    seen: dict[str, None] = {}
    for name in names:
        text = normalise(name)
        if text and len(text.split()) <= 8:
            seen.setdefault(text)
    return list(seen)


def read(package: Path) -> tuple[torch.Tensor, list[list[str]]]:
    """Pictures and spellings of the chosen categories; the first emoji to claim a spelling keeps it."""
    entries = json.loads((package / "emoji.json").read_text())
    entries = [e for e in entries if e["category"] in CATEGORIES and e["has_img_google"]]
    entries.sort(key=lambda e: e["sort_order"])
    # Skin tones drop out by themselves: they live under "skin_variations", not as entries of their own.
    proposals = [spellings(e) for e in entries]
    owner: dict[str, int] = {}
    for rank in range(max(map(len, proposals))):
        for i, names in enumerate(proposals):
            if rank < len(names):
                owner.setdefault(names[rank], i)
    images, captions = [], []
    for i, (entry, names) in enumerate(zip(entries, proposals, strict=True)):
        own = [name for name in names if owner[name] == i]
        if not own:
            continue
        picture = Image.open(package / "img/google/64" / entry["image"]).convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        images.append(np.asarray(Image.alpha_composite(white, picture).convert("RGB")))
        captions.append(own)
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return pixels, captions


def load(run: Path) -> tuple[torch.Tensor, list[list[str]]]:
    """What `main` wrote: pixels in [-1, 1] and spellings."""
    pixels = torch.load(run / "images.pt", weights_only=True)
    return pixels.float() / 127.5 - 1, json.loads((run / "captions.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    pixels, captions = read(fetch(run))
    torch.save(pixels, run / "images.pt")
    (run / "captions.json").write_text(json.dumps(captions, indent=0))
    print(f"{len(captions)} pictures of {tuple(pixels.shape[1:])}, {sum(map(len, captions))} spellings")


if __name__ == "__main__":
    main()
