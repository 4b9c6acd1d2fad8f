"""What the tests recognise pictures by: a sheet of 100 emoji, 16 pixels each, and a file of their captions.

`python thumbnails.py RUN ../tests/models` takes the emoji of the first 20 evaluation prompts and 80 others.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from data import load
from PIL import Image
from torch.nn import functional as F

from budcache import models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    pixels, captions = load(args.run)
    index = {name: i for i, names in enumerate(captions) for name in names}
    asked = [index[prompt] for prompt in models.prompts("tiny-flux", "evaluation")[:20]]
    others = random.Random(0).sample(sorted(set(range(len(captions))) - set(asked)), 80)
    small = F.avg_pool2d(pixels[asked + others], 4)
    sheet = small.unflatten(0, (10, 10)).permute(0, 3, 1, 4, 2).reshape(160, 160, 3)
    Image.fromarray(((sheet + 1) * 127.5).round().byte().numpy()).save(args.folder / "thumbnails.png", optimize=True)
    lines = models.prompts("tiny-flux", "evaluation")[:20] + [captions[i][0] for i in others]
    (args.folder / "thumbnails.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
