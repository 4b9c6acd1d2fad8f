"""The page in Chromium, as people use it. What they do is in `browser/page.test.mjs`."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from comparisons import STEPS, comparison, draw, film

from budcache import Ladder, Mask, Policy
from budcache.comparison import Comparison
from budcache.comparison.numbers import write_csv
from budcache.report.page import write

HERE = Path(__file__).parent / "browser"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# As long as those of real methods.
NAMES = (
    *("DiCache", "TaylorSeer", "L2P", "iPNDM(2M)", "UniPC", "fewer steps", "uniform mask", "budcache, plain reuse"),
    *("DPM-Solver++(2M)", "MagCache", "ERTACache", "LeMiCa", "TeaCache", "published search"),
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    """The path of a browser. One that is missing is a failure: a page that nobody has opened is not tested."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None or shutil.which("node") is None or not (HERE / "node_modules").exists():
        pytest.fail("Chromium, Node, Playwright or axe-core is missing. Run `make browser`.")
    return found


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A page with pictures and one with videos, and the comparison that they are of."""
    found = between(comparison(prompts=("a cat", "two <b>dogs</b>", 'red, and "blue"')))
    home = tmp_path_factory.mktemp("page")
    draw(found, home)
    Ladder.of(Policy(mask=Mask.uniform(STEPS, budget)) for budget in found.budgets).save(home / "budcache.ladder.json")
    videos = tmp_path_factory.mktemp("videos")
    film(found, videos)
    return found, write(found, home, home / "page.html"), write(found, videos, videos / "page.html")


def used(browser, file, width, theme, **asked):
    """Do what a file of tests says with a page."""
    wanted = {"CHROMIUM": browser, "PAGE_WIDTH": width, "PAGE_THEME": theme, **asked}
    ran = subprocess.run(
        ["node", "--test", "--test-reporter=spec", HERE / file],
        env={**os.environ, **{name: str(value) for name, value in wanted.items()}},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("width", [390, 1280])
def test_many_methods_fit(width, browser, tmp_path):
    found = comparison(methods=("budcache", *NAMES), prompts=("a cat", "a very long prompt " * 6))
    (tmp_path / "budcache.ladder.json").touch()
    used(browser, "many.test.mjs", width, "light", PAGE=write(found, tmp_path, tmp_path / "page.html"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_people_can_use_it(width, theme, browser, pages, tmp_path):
    found, page, video = pages
    used(browser, "page.test.mjs", width, theme, PAGE=page, PAGE_VIDEO=video, PAGE_OUT=tmp_path)
    # What was saved from the page is what lies beside it.
    assert Comparison.load(tmp_path / "comparison.json") == found
    assert numbers(tmp_path / "comparison.csv") == numbers(write_csv(found, tmp_path / "beside.csv"))
    assert Ladder.load(tmp_path / "budcache.ladder.json") == Ladder.load(page.parent / "budcache.ladder.json")
    rows = numbers(tmp_path / "samples.csv")
    settings = [each for entry in found.entries for each in (entry, entry.second) if each is not None]
    assert len(rows) == len(settings) * len(found.prompts)
    assert [row["prompt"] for row in rows[:3]] == list(found.prompts)
    for entry in found.entries:  # of two settings both, with the shares that make up the row
        mine = [row for row in rows if (row["method"], row["budget"]) == (entry.method, entry.budget)]
        for number, value in enumerate(entry.quality("psnr") or ()):
            shared = [row["share"] * row["psnr"] for row in mine if row["sample"] == number]
            assert mine[-1]["share"] == pytest.approx(entry.share if entry.second else 1.0)
            assert len(shared) == 1 + (entry.second is not None)
            assert sum(shared) == pytest.approx(value)


def worse(entry):
    return {name: tuple(0.9 * value for value in row) for name, row in entry.values.items()}


def between(found):
    """The same comparison with a second setting of TeaCache, which makes fewer calls than it may."""
    entries = [
        entry.model_copy(update={"second": entry.model_copy(update={"calls": (2,) * 3, "values": worse(entry)})})
        if entry.method == "teacache"
        else entry
        for entry in found.entries
    ]
    return found.model_copy(update={"entries": tuple(entries)})


def numbers(path):
    """The rows of a CSV file, whatever they write their numbers and truths like."""

    def read(text):
        try:
            return float(text)
        except ValueError:
            return text.lower()

    with path.open(encoding="utf-8", newline="") as file:
        return [
            {name: read(text) if name != "prompt" else text for name, text in row.items()}
            for row in csv.DictReader(file)
        ]
