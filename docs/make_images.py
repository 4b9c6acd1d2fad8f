"""Make the documentation's pictures of the report anew, from a comparison's folder. `make browser` comes before.

budcache compare tiny-flux --budgets 5,6,8,10 --count 24 --calibration-count 8 --out out/images
python docs/make_images.py out/images
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from budcache.comparison import show

ROOT = Path(__file__).parent.parent
IMAGES, SHOTS = ROOT / "docs" / "images", ROOT / "tests" / "report" / "browser" / "shots.mjs"
GAP, CORNER, WIDTH = 40, 20, 1440  # pixels


def main(folder: Path) -> None:
    show(folder)
    with tempfile.TemporaryDirectory() as made:
        chromium = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
        page = (folder / "comparison.html").resolve()
        subprocess.run(["node", SHOTS, page, made], check=True, env={**os.environ, "CHROMIUM": chromium})
        desktop, phone, curves = (Image.open(Path(made, f"{name}.png")) for name in ("desktop", "phone", "curves"))
        keep(beside(desktop, phone), IMAGES / "report.png")
        keep(rounded(curves), IMAGES / "report-curves.png")


def beside(desktop: Image.Image, phone: Image.Image) -> Image.Image:
    """The page on a screen, and on a phone that is as high."""
    phone = phone.resize((phone.width * desktop.height // phone.height, desktop.height), Image.Resampling.LANCZOS)
    both = Image.new("RGBA", (desktop.width + GAP + phone.width, desktop.height))
    both.paste(rounded(desktop), (0, 0))
    both.paste(rounded(phone), (desktop.width + GAP, 0))
    both.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
    return both


def rounded(picture: Image.Image) -> Image.Image:
    """The picture with round corners, whatever it is shown on."""
    corners = Image.new("L", picture.size)
    ImageDraw.Draw(corners).rounded_rectangle((0, 0, picture.width - 1, picture.height - 1), CORNER, fill=255)
    found = picture.convert("RGBA")
    found.putalpha(corners)
    return found


def keep(picture: Image.Image, path: Path) -> None:
    """A palette makes a file that is quick to load; found by k-means, it keeps the page's faint greys."""
    ground = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(ground, picture).convert("RGB")
    flat.quantize(256, Image.Quantize.MEDIANCUT, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path.relative_to(ROOT), picture.size, path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
