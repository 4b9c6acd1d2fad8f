"""The documentation keeps up with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.slow
def test_what_is_made_from_docstrings_is_up_to_date():
    done = subprocess.run([sys.executable, ROOT / "docs" / "make_api.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    named = re.findall(
        r"`((?:src|tests|docs|benchmarks|examples|training)/[\w./-]+)`", page.read_text(encoding="utf-8")
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_fact_that_the_code_cites_is_explained():
    cited = {
        fact
        for path in (ROOT / "src").rglob("*.py")
        for fact in re.findall(r"\bF\d{1,2}\b", path.read_text(encoding="utf-8"))
    }
    assert cited
    explained = set(re.findall(r"\*\*(F\d{1,2})\.", (ROOT / "docs" / "facts.md").read_text(encoding="utf-8")))
    assert cited <= explained
