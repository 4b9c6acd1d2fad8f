"""What the tests recognise clips by: a sheet of all emoji of the video models, 16 pixels each, in the order of names.

`python video_thumbnails.py RUN ../tests/models` writes wan-thumbnails.png and wan-thumbnails.txt.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data import fetch
from PIL import Image
from torch.nn import functional as F
from video_data import names, sprites
from video_evaluate import framed, reference

COLUMNS = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    cut = torch.stack([framed(reference(sprite, "still", [0])[0, 0]) for sprite in sprites(fetch(args.run))])
    small = F.avg_pool2d(cut, 2)
    small = torch.cat([small, torch.ones(-len(small) % COLUMNS, *small.shape[1:])])
    sheet = small.unflatten(0, (-1, COLUMNS)).permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    Image.fromarray((sheet * 255).round().byte().numpy()).save(args.folder / "wan-thumbnails.png", optimize=True)
    (args.folder / "wan-thumbnails.txt").write_text("\n".join(names()) + "\n")


if __name__ == "__main__":
    main()
