"""The studio in Chromium, as people use it: real processes, a real browser. What they do is in `browser/`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hub_server import Hub

HERE = Path(__file__).parent / "browser"
MODULES = Path(__file__).parents[1] / "report" / "browser" / "node_modules"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = "from budcache.cli import main; main()"
MOST = 150_000_000  # bytes that 200 moves of the slider may leave in the server
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def browser():
    """The path of a browser. One that is missing is a failure: a page that nobody has opened is not tested."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None or shutil.which("node") is None or not MODULES.exists():
        pytest.fail("Chromium, Node, Playwright or axe-core is missing. Run `make browser`.")
    return found


class Process:
    """`budcache studio` in a process of its own."""

    def __init__(self, project, *options, **environment):
        self.log = project.with_suffix(".log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "studio", *options, "--no-open", "--port", "0", "--project", project],
            env={**os.environ, "COLUMNS": "200", **environment},
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        line = self.process.stdout.readline()
        self.address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]

    @property
    def memory(self):
        """Bytes in main memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])

    def end(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(60)
        self.process.stdout.close()
        self.log.seek(0)
        said = self.log.read()
        self.log.close()
        return said


@pytest.fixture
def home(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "red apple"}\nnonsense\n')
    return tmp_path


@pytest.fixture
def studio(home):
    """A studio of tiny-flux, and a hub on loopback that it may publish to."""
    hub = Hub()
    hub.users["hf_token"] = "me"
    found = Process(home / "project", "tiny-flux", HF_ENDPOINT=hub.url, HF_TOKEN="hf_token", HF_HOME=str(home / "hf"))
    yield found
    assert "Traceback" not in found.end()
    hub.close()


def acted(browser, name, address, out, *, width=1280, theme="light", **more):
    """Run one file of what people do."""
    asked = {"CHROMIUM": browser, "STUDIO": address, "STUDIO_OUT": out, "PAGE_WIDTH": width, "PAGE_THEME": theme}
    ran = subprocess.run(
        ["node", "--test", "--test-reporter=spec", HERE / f"{name}.test.mjs"],
        env={**os.environ, **{key: str(value) for key, value in (asked | more).items()}},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_people_can_use_it(studio, browser, home):
    """All of it on one studio, one after the other: what the first part finds and compares is what the others see."""
    acted(browser, "main", studio.address, home)
    for width in (390, 1280):
        for theme in ("light", "dark"):
            acted(browser, "looks", studio.address, home, width=width, theme=theme)
    before = studio.memory
    acted(browser, "moves", studio.address, home)
    assert studio.memory - before < MOST


def test_a_killed_search_is_found_again_and_goes_on(browser, home):
    project = home / "killed"
    first = Process(project, "tiny-flux")
    acted(browser, "stopped", first.address, home, STUDIO_PART="begin")
    first.end(signal.SIGKILL)
    again = Process(project, "tiny-flux")
    try:
        acted(browser, "stopped", again.address, home, STUDIO_PART="go on")
    finally:
        said = again.end()
    assert "Traceback" not in said


def test_videos_play_together(browser, home):
    found = Process(home / "videos", "tiny-wan", "--steps", "6")
    try:
        acted(browser, "videos", found.address, home)
    finally:
        said = found.end()
    assert "Traceback" not in said
