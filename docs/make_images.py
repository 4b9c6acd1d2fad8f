"""Make the documentation's pictures of the report and of the studio anew. `make browser` comes before.

budcache compare tiny-flux --budgets 5,6,8,9,10 --count 64 --timed none --out out/images
    (the pictures that are there: the folder of benchmarks/paper/main_table.py, without its rows of other policies)
python docs/make_images.py out/images    of the report, from a comparison's folder
python docs/make_images.py studio/tiny-flux    of the studio, from a project in which a search and a comparison are done
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
    (studio if (folder / "project.json").exists() else report)(folder)


def studio(project: Path) -> None:
    """The tabs of a studio; the first on a phone, too."""
    command = [sys.executable, "-c", "from budcache.cli import main; main()", "studio", "--no-open", "--port", "0"]
    with (
        tempfile.TemporaryDirectory() as made,
        subprocess.Popen([*command, "--project", project], stdout=subprocess.PIPE, text=True) as running,
    ):
        assert running.stdout is not None
        address = running.stdout.readline().split()[3]
        shots = ROOT / "tests" / "studio" / "browser" / "shots.mjs"
        subprocess.run(["node", shots, address, made], check=True, env={**os.environ, "CHROMIUM": chromium()})
        running.terminate()
        pictures = {path.stem: Image.open(path) for path in Path(made).glob("*.png")}
        keep(beside(pictures["look"], pictures["phone"]), IMAGES / "studio-look.png")
        for name in ("find", "compare", "take"):
            keep(rounded(pictures[name]), IMAGES / f"studio-{name}.png")


def chromium() -> str:
    return shutil.which("chromium") or shutil.which("google-chrome") or "chromium"


def report(folder: Path) -> None:
    """The page of a comparison."""
    show(folder)
    with tempfile.TemporaryDirectory() as made:
        page = (folder / "comparison.html").resolve()
        subprocess.run(["node", SHOTS, page, made], check=True, env={**os.environ, "CHROMIUM": chromium()})
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
