from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from comparisons import STEPS, comparison, draw

from budcache import Ladder, Mask, Policy
from budcache.comparison import headline
from budcache.comparison.table import NOTES, notes
from budcache.report.page import page, write

HOSTILE = "<script>alert('x')</script> \" & a cat"
VOID = {"meta", "img", "input", "br", "link"}
OWN_SCRIPTS = 2  # the page's, and the numbers that it exports


class Reader(HTMLParser):
    """What a browser would meet: tags with their attributes, text, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A page of a comparison with all there can be in one, one prompt being hostile."""
    folder = tmp_path_factory.mktemp("compared")
    found = comparison(prompts=(HOSTILE, "two dogs", "red"))
    draw(found, folder)
    (folder / "budcache.ladder.json").touch()
    return found, page(found, folder)


def test_the_page_loads_nothing(shown):
    _, text = shown
    read = Reader(text)
    for tag, attributes in read.tags:
        for name in ("src", "href", "srcset", "data", "action", "poster"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
    assert not read.all("link")
    assert not read.all("iframe")
    assert "@import" not in text
    assert re.findall(r"url\((?!['\"]?data:)", text) == []
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_what_people_wrote_stays_text(shown):
    _, text = shown
    read = Reader(text)
    assert len(read.all("script")) == OWN_SCRIPTS
    assert HOSTILE in "".join(read.text)
    assert any(attributes.get("alt", "").startswith(HOSTILE) for attributes in read.all("img"))


def test_a_browser_is_told_to_run_our_script_and_no_other(shown):
    _, text = shown
    (policy,) = [a["content"] for a in Reader(text).all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert "default-src 'none'" in policy
    assert policy.endswith(f"script-src 'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'")
    assert not re.search(r"<[^>]*\son[a-z]+=", text), "a handler written into a tag would not run"


def test_all_that_comes_from_outside_stays_text(tmp_path):
    """Names of policies, models, settings and errors are other people's, too."""
    found = comparison(methods=("uniform", "policy:flux.json"))
    entries = [entry.model_copy(update={"title": HOSTILE, "knob": HOSTILE}) for entry in found.entries[1:3]]
    reason = found.left_out[0].model_copy(update={"title": HOSTILE, "reason": HOSTILE})
    origin = found.origin.model_copy(update={"model": HOSTILE, "scheduler": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    changed = {"entries": (found.full, *entries, *found.entries[3:]), "left_out": (reason,), "origin": origin}
    read = Reader(page(found.model_copy(update=changed), tmp_path))
    assert len(read.all("script")) == OWN_SCRIPTS
    assert "".join(read.text).count(HOSTILE) >= 10


def test_everything_is_on_it(shown):
    found, text = shown
    read = Reader(text)
    words = "".join(read.text)
    for entry in found.entries:
        assert entry.title in words
        for measure in found.measures:
            if summed := entry.summed(measure):
                assert f"{measure.written(summed.mean)} ± {measure.written(summed.error)}" in words
                assert f"{measure.written(summed.tail)} / {measure.written(summed.worst)}" in words
    assert "DiCache: its trunk is not known." in words
    assert "seeds 10000 to 10002" in words
    assert "teacache, 3 callsthreshold 0.12" in "".join(words.split("\n")), "settings, below the table"
    assert "1 thread, float32" in words
    assert "latencynot measured" in words, "nobody was timed"
    assert "budcache.applied(pipe, 'budcache.ladder.json', budget=5)" in words
    assert "pipe = ..." in words
    assert "sample-calls spent" in words


def test_pictures_and_charts_can_be_read_aloud(shown):
    found, text = shown
    read = Reader(text)
    pictures = [attributes for attributes in read.all("img") if "src" in attributes]
    # Every entry's picture of every prompt once, the full run's among them.
    assert len(pictures) == len(found.prompts) * len(found.entries)
    assert all(attributes["alt"] for attributes in pictures)
    differences = [a["data-difference"] for a in read.all("button") if "data-difference" in a]
    assert len(differences) == len(found.prompts) * (len(found.entries) - 1)
    assert all("aria-label" in a or "aria-hidden" in a for a in read.all("svg"))
    assert all("scope" in attributes for attributes in read.all("th"))
    assert text.count("<table") == text.count("<caption>")
    labelled = {attributes["for"] for attributes in read.all("label") if "for" in attributes}
    assert labelled == {attributes["id"] for attributes in read.all("input") if "id" in attributes}


def test_it_says_one_number_and_one_line(shown):
    found, text = shown
    assert "<b>2.4×</b> fewer model calls" in text, "12 calls and 5"
    assert headline(found) in "".join(Reader(text).text).replace("\u00a0", " ")
    assert "Shown at 5 calls, the larger of 3 and 5, which was fixed before the results." in text


def test_methods_that_were_not_checked_against_their_authors_code_are_named():
    said = NOTES["unchecked"].format("l2p")
    assert said in notes(comparison(methods=("uniform", "l2p", "budcache")))
    assert not any("written after the paper" in line for line in notes(comparison()))


def test_there_is_a_style_for_every_tab_of_a_long_comparison(tmp_path):
    found = comparison(budgets=tuple(range(1, 11)))
    text = page(found, tmp_path)
    for number in range(1, 11):
        assert f"input:nth-of-type({number}):checked ~ section:nth-of-type({number})" in text


def test_a_budget_at_which_nobody_took_part_is_left_out(tmp_path):
    found = comparison(budgets=(3, 5))
    entries = tuple(entry for entry in found.entries if entry.budget != 5)
    found = found.model_copy(update={"entries": entries, "history": ()})
    read = Reader(page(found, tmp_path))
    assert "3 calls" in read.text
    assert "5 calls" not in read.text


def test_a_speed_up_that_is_not_known_is_not_printed(tmp_path):
    found = comparison(methods=("uniform", "budcache"))

    def timed(seconds):
        pairs = {"full_seconds": (1.0,) * 25, "full_calls": (STEPS,) * 25, "timed_seconds": seconds}
        entries = [
            entry.model_copy(update={**pairs, "timed_calls": (entry.budget,) * 25})
            if entry.method == "budcache"
            else entry
            for entry in found.entries
        ]
        return "".join(Reader(page(found.model_copy(update={"entries": tuple(entries)}), tmp_path)).text)

    assert timed((0.5, 0.5, 0.51, 0.5, 0.49) * 5).count("2.0×") == 4, "at two budgets, in both tables alike"
    assert "not measurable here" not in timed((0.5, 0.5, 0.51, 0.5, 0.49) * 5)
    assert "not measurable here" in timed((0.5, 0.9, 0.45, 2.0, 0.6) * 5)
    assert "up to 25 pairs of a full run and a run of the method" in timed((0.5,) * 25)
    known, unknown = (timed(seconds) for seconds in ((0.5,) * 25, (0.5, 0.9, 0.45, 2.0, 0.6) * 5))
    assert "Only budcache was timed." in known and "Only budcache was timed." in unknown, "also who was timed in vain"
    assert "not timed" not in known + unknown, "once is enough"


def test_it_says_once_who_was_timed(tmp_path):
    found = comparison()
    words = "".join(Reader(page(found, tmp_path)).text)
    assert words.count("No method was timed.") == 1 and "time, in %" not in words and "not timed" not in words
    pairs = {"full_seconds": (1.0,) * 25, "full_calls": (STEPS,) * 25, "timed_seconds": (0.5,) * 25}

    def said(*names):
        entries = [
            entry.model_copy(update={**pairs, "timed_calls": (entry.budget,) * 25}) if entry.method in names else entry
            for entry in found.entries
        ]
        return "".join(Reader(page(found.model_copy(update={"entries": tuple(entries)}), tmp_path)).text)

    assert "Only uniform and budcache were timed." in said("uniform", "budcache")
    assert " timed." not in said(*found.methods) and "time, in % of a full run" in said(*found.methods)


def test_nobody_takes_a_small_model_for_a_large_one(tmp_path):
    found = comparison()
    assert " is a small model of " not in page(found, tmp_path)
    for name, other in {"tiny-flux": "FLUX.1", "tiny-wan": "Wan2.1", "tiny-wan-large": "Wan2.1"}.items():
        small = found.model_copy(update={"origin": found.origin.model_copy(update={"model": name})})
        words = "".join(Reader(page(small, tmp_path)).text)
        assert re.search(rf"{name} is a small model of 64 × 64 pixel .* it is not {re.escape(other)}\.", words)


def test_missing_pictures_do_not_keep_it_from_being_written(tmp_path):
    found = comparison()
    file = write(found, tmp_path / "gone", tmp_path / "page.html")
    assert len(Reader(file.read_text()).all("img")) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_it_stays_light_with_many_large_pictures(tmp_path):
    import numpy as np
    from PIL import Image

    from budcache.comparison.kept import picture

    found = comparison(prompts=tuple("abcdef"), methods=tuple(f"method {i}" for i in range(8)), budgets=(3, 5))
    noise = np.random.default_rng(0).integers(0, 255, (320, 320, 3), np.uint8)  # nothing compresses worse
    for entry in found.entries:
        for sample in range(6):
            path = picture(tmp_path, entry.method, entry.budget, sample)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.roll(noise, entry.budget + sample, axis=0)).save(path, compress_level=0)
    assert len(page(found, tmp_path).encode()) < 3_000_000


def test_a_lead_within_two_standard_errors_is_called_undecided(tmp_path):
    def found(psnr):
        kept = comparison(methods=("uniform", "budcache"))
        values = {"uniform": (20.0, 24.0, 28.0), "budcache": psnr}
        entries = [
            entry.model_copy(update={"values": {"psnr": values[entry.method]}}) if entry.method in values else entry
            for entry in kept.entries
        ]
        return kept.model_copy(update={"entries": tuple(entries)})

    # Sample by sample it is a little more than one better, though single samples differ by eight.
    ahead, unsure = found((21.2, 25.4, 29.4)), found((23.0, 23.0, 28.5))
    assert re.search(
        r"PSNR 25\.3 ± 2\.4 dB to the full run: 1\.3 ± 0\.1 dB closer than .* on 3 prompts\.$", headline(ahead)
    )
    assert headline(unsure).endswith("on 3 prompts; that may be chance, so it is undecided.")
    said, doubted = ("".join(Reader(page(each, tmp_path)).text) for each in (ahead, unsure))
    assert "budcache ahead by, PSNR" in said
    assert "+1.33 ± 0.07" in said
    assert "+0.83 ± 1.17undecided" in doubted
    assert "undecided" not in said.split("All numbers")[1].split("How it was measured")[0]


def test_it_says_on_how_many_prompts_each_was_made(tmp_path):
    words = "".join(Reader(page(comparison(), tmp_path)).text)
    assert "calibrated on24 prompts: budcache; 4 prompts: teacache" in words
    assert "authors" not in words
    with_theirs = comparison(methods=("authors", "budcache"))
    words = "".join(Reader(page(with_theirs, tmp_path)).text)
    assert "24 prompts: budcache; 2 prompts: authors" in words


def test_the_file_to_use_is_one_that_is_there(tmp_path):
    found = comparison()
    assert "budcache.applied" not in page(found, tmp_path)
    (tmp_path / "budcache.ladder.json").touch()
    assert "&#39;budcache.ladder.json&#39;, budget=5" in page(found, tmp_path)
    filmed = found.model_copy(update={"origin": found.origin.model_copy(update={"frames": 17})})
    assert ".images[0]" in page(found, tmp_path)
    assert "video = pipe(&#39;a cat&#39;).frames[0]" in page(filmed, tmp_path)
    brought = comparison(methods=("uniform", "policy:flux.json"))
    assert "&#39;flux.json&#39;, budget=5" in page(brought, tmp_path)


def test_who_gets_the_page_can_use_the_policy(tmp_path):
    found, file = comparison(), tmp_path / "budcache.ladder.json"
    Ladder.of([Policy(mask=Mask.uniform(STEPS, 3))]).save(file)
    text = page(found, tmp_path)
    assert "# pip install budcache\nimport budcache" in text and "Policy file (JSON)" in text
    (data,) = re.findall(r'id="data">(.*?)</script>', text)
    assert json.loads(gzip.decompress(base64.b64decode(data)))["policy"] == [file.name, file.read_text()]
    for other in ("no policy", "{}", file.read_text() + " " * 200_000):
        file.write_text(other)
        assert "Policy file (JSON)" not in page(found, tmp_path), "only a policy, and only a small one"


def test_without_ours_there_is_still_a_page(tmp_path):
    found = comparison(methods=("uniform", "teacache"))
    text = page(found, tmp_path)
    assert "2 methods at 3, 5 of 12 calls." in text
    assert "<b>2</b> methods at equal cost" in text
    assert "budcache.applied" not in text
