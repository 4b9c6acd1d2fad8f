from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from comparisons import PSNR, STEPS, comparison, draw

from budcache.comparison import best_other, headline
from budcache.comparison.table import NOTES, notes
from budcache.comparison.verdict import main_budget, why_this_budget
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
    assert "1 thread, float32" in words
    assert "latencynot measured" in words, "nobody was timed"
    assert "budcache.applied(pipe, 'budcache.ladder.json', budget=5)" in words
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
    assert "5 calls are put forward as the larger one of 3 and 5, whatever came of them." in text


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        ((3,), ""),
        ((3, 4, 5), "4 calls are put forward as the middle one of 3, 4 and 5, whatever came of them."),
        (
            (3, 4, 5, 6),
            "5 calls are put forward as the larger of the two in the middle of 3, 4, 5 and 6, whatever came of",
        ),
    ],
)
def test_it_says_why_it_puts_a_budget_forward(budgets, says):
    found = why_this_budget(comparison(budgets=budgets))
    assert found.startswith(says) and bool(found) == bool(says)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (lambda number: 51.0 + number, " At 3 calls uniform is better."),
        (lambda number: 50.0 + number + (2 if number % 2 else -2.5), " At 3 calls uniform is better or worse: un"),
        (lambda number: 40.0 + number, "whatever came of them."),
    ],
    ids=["behind", "undecided", "ahead"],
)
def test_it_says_at_which_other_budgets_ours_is_not_ahead(theirs, says):
    found = comparison(methods=("uniform", "budcache"), budgets=(3, 5))
    values = {"uniform": theirs, "budcache": lambda number: 50.0 + number}
    entries = tuple(
        each.model_copy(
            update={"values": {**each.values, "psnr": tuple(map(values[each.method], range(len(found.prompts))))}}
        )
        if each.method in values and each.budget == 3
        else each
        for each in found.entries
    )
    told = why_this_budget(found.model_copy(update={"entries": entries}))
    assert says in told and told.endswith(".") and ("At 3" in told) == ("At 3" in says)


def test_the_budget_put_forward_is_one_that_ours_has():
    found = comparison(budgets=(3, 4, 5, 6, 7))
    lacking = found.model_copy(
        update={"entries": tuple(e for e in found.entries if e.method != "budcache" or e.budget in (3, 4, 7))}
    )
    assert (main_budget(found), main_budget(lacking)) == (5, 4)
    without = found.model_copy(update={"entries": tuple(e for e in found.entries if e.method != "budcache")})
    assert main_budget(without) == 5 and why_this_budget(without) == ""


def test_another_policy_of_ours_is_not_the_best_of_the_others():
    found = comparison(methods=("uniform", "policy:budcache, careful", "policy:somebody's", "budcache"))
    titled = [e.model_copy(update={"title": e.title.removeprefix("policy:")}) for e in found.entries]
    found = found.model_copy(update={"entries": tuple(titled)})
    means = {e.method: e.summed(PSNR).mean for e in found.at(5) if "budcache" not in e.method}
    assert best_other(found, 5, PSNR).method == max(means, key=means.get)
    assert len(means) == 2
    brought = comparison(methods=("uniform", "policy:mine", "policy:budcache.json"))
    brought = brought.model_copy(
        update={
            "entries": tuple(e.model_copy(update={"title": e.title.removeprefix("policy:")}) for e in brought.entries)
        }
    )
    (rival,) = (e for e in brought.at(5) if e.method == "policy:budcache.json")
    raised = {name: tuple(value + 100 for value in row) for name, row in rival.values.items()}
    entries = (e if e != rival else rival.model_copy(update={"values": raised}) for e in brought.entries)
    brought = brought.model_copy(update={"entries": tuple(entries)})
    assert brought.ours == "policy:mine"
    assert best_other(brought, 5, PSNR).method == rival.method, "where budcache has not searched, a name is only a name"


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
    found = found.model_copy(update={"entries": tuple(entry for entry in found.entries if entry.budget != 5)})
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

    assert "2.0×" in timed((0.5, 0.5, 0.51, 0.5, 0.49) * 5)
    assert "not measurable here" not in timed((0.5, 0.5, 0.51, 0.5, 0.49) * 5)
    assert "not measurable here" in timed((0.5, 0.9, 0.45, 2.0, 0.6) * 5)
    assert "up to 25 pairs of a full run and a run of the method" in timed((0.5,) * 25)
    known, unknown = (timed(seconds).count("not timed") for seconds in ((0.5,) * 25, (0.5, 0.9, 0.45, 2.0, 0.6) * 5))
    assert known == unknown > 0, "who was timed in vain was timed"


def test_missing_pictures_do_not_keep_it_from_being_written(tmp_path):
    found = comparison()
    file = write(found, tmp_path / "gone", tmp_path / "page.html")
    assert len(Reader(file.read_text()).all("img")) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_it_stays_light_with_many_large_pictures(tmp_path):
    import numpy as np
    from PIL import Image

    from budcache.comparison.folder import picture

    found = comparison(prompts=tuple("abcdef"), methods=tuple(f"method {i}" for i in range(8)), budgets=(3, 5))
    noise = np.random.default_rng(0).integers(0, 255, (320, 320, 3), np.uint8)  # nothing compresses worse
    for entry in found.entries:
        for sample in range(6):
            path = picture(tmp_path, entry.method, entry.budget, sample)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.roll(noise, entry.budget + sample, axis=0)).save(path, compress_level=0)
    assert len(page(found, tmp_path).encode()) < 3_000_000


def test_the_headline_is_true_whoever_wins():
    def titled(better):
        found = comparison(methods=("uniform", "budcache"))
        entries = [
            entry.model_copy(update={"values": {**entry.values, "psnr": tuple(value + better for value in row)}})
            if entry.method == "budcache" and (row := entry.values["psnr"])
            else entry
            for entry in found.entries
        ]
        return headline(found.model_copy(update={"entries": tuple(entries)}))

    assert re.search(r"With 5 instead of 12 model calls budcache reaches PSNR \d\d\.\d ± \d\.\d dB, \d", titled(0))
    assert "better than the best of the others shown (uniform)" in titled(0)
    assert "worse than the best of the others shown (uniform)" in titled(-20)
    assert "undecided" not in titled(0) + titled(-20)


def test_a_lead_within_two_standard_errors_is_called_undecided(tmp_path):
    def found(psnr):
        kept = comparison(methods=("uniform", "budcache"))
        values = {"uniform": (20.0, 24.0, 28.0), "budcache": psnr}
        entries = [
            entry.model_copy(update={"values": {"psnr": values[entry.method]}}) if entry.method in values else entry
            for entry in kept.entries
        ]
        return kept.model_copy(update={"entries": tuple(entries)})

    # Sample by sample it is one or two better, though single samples differ by eight.
    ahead, unsure = found((21.0, 26.0, 29.0)), found((23.0, 23.0, 28.5))
    assert re.search(r"PSNR 25\.3 ± 2\.3 dB, 1\.3 ± 0\.3 dB better than .* on 3 prompts\.$", headline(ahead))
    assert headline(unsure).endswith("on 3 prompts: undecided, within two standard errors.")
    said, doubted = ("".join(Reader(page(each, tmp_path)).text) for each in (ahead, unsure))
    assert "budcache ahead by, PSNR" in said
    assert "+1.33 ± 0.33" in said
    assert "+0.83 ± 1.17undecided" in doubted
    assert "undecided" not in said.split("All numbers")[1].split("How it was measured")[0]


def test_the_headline_says_so_where_a_better_one_took_more_calls():
    def titled(theirs):
        found = comparison(methods=("uniform", "teacache", "budcache"))
        entries = [
            entry.model_copy(update={"values": {"psnr": (theirs,) * 3}}) if entry.method == "teacache" else entry
            for entry in found.entries
        ]
        return headline(found.model_copy(update={"entries": tuple(entries)}))

    assert "best of the others shown (uniform)" in titled(10.0)
    assert "best of the others shown that kept to the budget (uniform)" in titled(99.0)


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


def test_without_ours_there_is_still_a_page(tmp_path):
    found = comparison(methods=("uniform", "teacache"))
    text = page(found, tmp_path)
    assert "2 methods at 3, 5 of 12 calls." in text
    assert "<b>2</b> methods at equal cost" in text
    assert "budcache.applied" not in text
