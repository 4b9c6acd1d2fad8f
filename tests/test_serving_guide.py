"""Every block of docs/serving.md that a CPU can run is run here, in one go."""

from __future__ import annotations

import importlib.util
import re
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from budcache import Ladder, Mask, Policy

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
NOT_RUN, IF_INSTALLED = "# not run here", "# run where fastapi is installed"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the page's blocks leave behind."""
    folder = tmp_path_factory.mktemp("guide")
    Ladder.of([Policy(mask=Mask.uniform(28, calls)) for calls in (4, 8)]).save(folder / "tiny.ladder.json")
    names: dict[str, object] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for code in blocks():
            unable = code.startswith(IF_INSTALLED) and importlib.util.find_spec("fastapi") is None
            if not code.startswith(NOT_RUN) and not unable:
                exec(compile(code, str(PAGE), "exec"), names)
        yield names


def test_most_blocks_are_run_and_the_others_can_be_read():
    skipped = [code for code in blocks() if code.startswith(NOT_RUN)]
    assert len(blocks()) - len(skipped) >= 6
    for code in blocks():
        compile(code, str(PAGE), "exec")


def test_what_the_page_does_comes_out_as_it_says(page):
    assert "the full run of 28 calls fits into 600 s" in page["handle"].reason
    assert (page["pipe"].scheduler is not None) and Path("tiny.ladder.timings.json").exists()
    counts = sum((handle.stats() for _, handle in page["workers"]), page["Stats"]()).budgets
    assert {budget: tuple(each) for budget, each in counts.items()} == {4: (1, 4, 24), 8: (2, 16, 40)}
    assert page["request"].scheduler.stats.last_run_calls == 4
    assert [image.size for image in page["images"]] == [(64, 64)] * 3


def test_the_server_answers(page):
    server = page["server"]
    address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        query = urlencode({"prompt": "red apple", "budget": 4})
        assert urlopen(f"{address}/?{query}", timeout=120).read(4) == b"\x89PNG"
        metrics = urlopen(f"{address}/metrics", timeout=120).read().decode()
        assert 'budcache_calls_total{model="tiny-flux",budget="4"} 8' in metrics
        assert metrics.count("# TYPE budcache_calls_total counter") == 1
        with pytest.raises(HTTPError) as refused:
            urlopen(f"{address}/?prompt=rocket&budget=5", timeout=120)
        assert refused.value.code == 400 and b"no rung of 5 calls" in refused.value.read()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
