"""The ledger: nothing scored is lost, and nothing of another search is taken for it."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from budcache import FileError, Mask, SearchError
from budcache.calibration.score import Score
from budcache.strategies import STRATEGIES, Anneal, Ask, Ledger, Limits, Space, drive, read_history
from budcache.strategies.ledger import FORMAT
from budcache.testing import ready, toy_score

STEPS, BUDGETS = 10, (3, 4)
SEARCH = {"model": "toy", "steps": STEPS, "prompts_hash": "abc", "seed": 0, "adapters": ["one"], "height": None}


class Model:
    """A toy that counts its calls as a calibration does."""

    def __init__(self):
        self.calls, self.score = 10, toy_score(STEPS)

    def __call__(self, ask):
        for mask in ask.masks:
            self.calls += mask.budget
            yield self.score(mask)


def many(score):
    return lambda ask: map(score, ask.masks)


def alone(plan):
    """The same search without a ledger."""
    return drive(plan, many(toy_score(STEPS)), steps=STEPS, budgets=BUDGETS, seed=1)


def search(path, plan, **more):
    """A search with a ledger, as the API does it."""
    model, ledger = Model(), Ledger(path, SEARCH)
    try:
        remembering = ledger.remembering(model, lambda: model.calls)
        return drive(plan, remembering, steps=STEPS, budgets=BUDGETS, seed=1, **more), model
    finally:
        ledger.close()


def told(found):
    """What of a history does not depend on what it cost."""
    return [(step.mask, step.loss, step.phase, step.new) for step in found.history]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "a.ledger.jsonl"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_search_is_the_same_search(path, name):
    plan = ready(STRATEGIES[name], STEPS)
    whole = alone(plan)
    for limit in (1, 7, 20):  # three times interrupted
        stopped, _ = search(path, plan, limits=Limits(evaluations=limit))
        assert told(stopped) == told(whole)[: len(stopped.history)]
    ended, model = search(path, plan)
    assert told(ended) == told(whole)
    assert ended.scores == whole.scores
    assert model.calls == 10 + sum(mask.budget for mask in list(whole.scores)[20:])  # nothing scored twice
    again, model = search(path, plan)
    assert told(again) == told(whole)
    assert model.calls == 10


def test_the_calls_of_all_runs_add_up(path):
    search(path, STRATEGIES["ladder"], limits=Limits(evaluations=5))
    first = Ledger(path, SEARCH)
    first.close()
    assert first.spent == 10 + sum(step.mask.budget for step in read_history(path))
    search(path, STRATEGIES["ladder"])
    history = read_history(path)
    assert [step.sample_calls for step in history] == sorted(step.sample_calls for step in history)
    assert history[-1].sample_calls == 2 * 10 + sum(step.mask.budget for step in history)


def test_history_is_read_back_in_order(path):
    found, _ = search(path, Anneal(iterations=30))
    history = read_history(path)
    assert [(s.mask, s.loss, s.phase) for s in history] == [
        (s.mask, s.loss, s.phase) for s in found.history if s.new
    ]  # losses bit for bit
    assert all(step.new for step in history)


def test_every_score_is_on_disk_as_soon_as_it_is_known(path):
    counts = []

    def watch(step):
        counts.append((len(read_history(path)), step.new))

    search(path, Anneal(iterations=10), watch=watch)
    lines = 0
    for count, new in counts:
        lines += new
        assert count == lines


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(data=st.data())
def test_a_ledger_cut_anywhere_goes_on(tmp_path, data):
    path = tmp_path / "cut.jsonl"
    path.unlink(missing_ok=True)
    whole, _ = search(path, Anneal(iterations=6))
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    ended, _ = search(path, Anneal(iterations=6))
    assert told(ended) == told(whole)
    # The file is whole again, and says the same but for the calls.
    assert [(s.mask, s.loss) for s in read_history(path)] == [(s.mask, s.loss) for s in whole.history if s.new]


def test_a_cut_last_line_is_dropped_and_the_rest_is_not_touched(path):
    search(path, STRATEGIES["ladder"])
    content = path.read_bytes()
    path.write_bytes(content + b'{"mask": "10010')
    before = path.stat().st_ino
    ledger = Ledger(path, SEARCH)
    ledger.close()
    assert path.read_bytes() == content
    assert path.stat().st_ino == before
    assert len(ledger.known) == content.count(b"\n") - 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", "other"), ("prompts_hash", "xyz"), ("seed", 1), ("steps", 11), ("adapters", []), ("height", 64)],
)
def test_a_ledger_of_another_search_is_refused(path, name, value):
    search(path, STRATEGIES["uniform"])
    content = path.read_bytes()
    with pytest.raises(SearchError) as caught:
        Ledger(path, {**SEARCH, name: value})
    for part in (str(path), name, repr(SEARCH[name]), repr(value), "remove the file"):
        assert part in str(caught.value)
    assert path.read_bytes() == content


def test_a_field_too_many_or_too_few_is_another_search(path):
    search(path, STRATEGIES["uniform"])
    with pytest.raises(SearchError, match=r"guidance = none, this one has 3\.5"):
        Ledger(path, {**SEARCH, "guidance": 3.5})
    with pytest.raises(SearchError, match="model = 'toy', this one has none"):
        Ledger(path, {name: value for name, value in SEARCH.items() if name != "model"})


def test_values_that_json_changes_are_still_the_same(path):
    given = {**SEARCH, "adapters": ("one",)}
    Ledger(path, given).close()
    Ledger(path, given).close()


HEADER = json.dumps({"ledger": 1, "search": {"format": FORMAT, **SEARCH}})
ARRIVALS = [None, *([0.1, 0.2] for _ in range(STEPS))]
ENTRY = {"mask": "1000000000", "phase": "ladder", "calls": 1, "losses": [0.5, 0.7], "arrivals": ARRIVALS}


@pytest.mark.parametrize(
    "text",
    [
        "garbage\n",
        "my notes, one line without an end",
        "{}\n",
        "[1]\n",
        "1\n",
        '{"ledger": 1}\n',
        '{"ledger": 1, "search": 3}\n',
        '{"ledger": 1, "search": [1]}\n',
        "[" * 100_000 + "\n",
        "\n",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_not_a_ledger_is_left_alone(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(SearchError, match=r"is not a ledger\. Choose another place, or remove the file to start"):
        Ledger(path, SEARCH)
    assert path.read_text() == text


@pytest.mark.parametrize("data", [b"\xff\xfe\x00\n", b"\x00\x01\x02", b"\x89PNG\r\n\x1a\n"])
def test_what_is_not_text_is_left_alone(path, data):
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(SearchError, match="is not a ledger"):
        Ledger(path, SEARCH)
    assert path.read_bytes() == data


@pytest.mark.parametrize("version", [2, 0, "1", None])
def test_another_version_is_refused(path, version):
    path.parent.mkdir()
    path.write_text(json.dumps({"ledger": version, "search": SEARCH}) + "\n")
    with pytest.raises(SearchError, match=f"of version {version!r}, this is 1"):
        Ledger(path, SEARCH)


@pytest.mark.parametrize(
    "change",
    [
        {"mask": "0100000000"},
        {"mask": "10x0000000"},
        {"mask": ""},
        {"mask": 5},
        {"losses": "much"},
        {"losses": None},
        {"losses": 0.5},
        {"losses": [None]},
        {"arrivals": 3},
        {"arrivals": [None, 0.1]},
        {"arrivals": ARRIVALS[:-1]},
        {"arrivals": [*ARRIVALS, [0.1, 0.2]]},
        {"arrivals": [None, None, *ARRIVALS[2:]]},
        {"arrivals": [[0.1, 0.2], *ARRIVALS[1:]]},
        {"arrivals": [*ARRIVALS[:-1], [0.1]]},
        {"arrivals": [*ARRIVALS[:-1], [0.1, math.nan]]},
        {"arrivals": [*ARRIVALS[:-1], [-1e300, -1e300]]},
        {"losses": [0.5]},
        {"losses": [0.5, math.nan]},
        {"losses": [0.5, math.inf]},
        {"losses": [1e308, 1e308]},
        {"ratios": [30.0]},
        {"ratios": [30.0, -1e5]},
        {"weights": [[1.0], [1.0]]},
        {"weights": [[math.nan]]},
        {"rows": [{"outputs": [1.0]}, {"outputs": [1.0]}]},
        {"calls": "many"},
    ],
    ids=str,
)
def test_a_line_that_is_no_score_is_shown(path, change):
    path.parent.mkdir()
    path.write_text(f"{HEADER}\n{json.dumps(ENTRY)}\n{json.dumps(ENTRY | change)}\n{json.dumps(ENTRY)}\n")
    with pytest.raises(SearchError, match=r"has a line that cannot be used: .*Remove the line, or remove the file"):
        Ledger(path, SEARCH)


def test_a_ledger_without_arrivals_is_said_to_the_ladder(path):
    path.parent.mkdir()
    path.write_text(f"{HEADER}\n{json.dumps(ENTRY | {'arrivals': []})}\n")
    with pytest.raises(SearchError, match="without the errors on its way"):
        search(path, STRATEGIES["ladder"])


@pytest.mark.parametrize("name", ENTRY)
def test_a_line_that_lacks_something_is_shown(path, name):
    path.parent.mkdir()
    path.write_text(f"{HEADER}\n{json.dumps({key: value for key, value in ENTRY.items() if key != name})}\n")
    if name == "phase":  # only told to people
        assert len(Ledger(path, SEARCH).known) == 1
        return
    with pytest.raises(SearchError, match="cannot be used"):
        Ledger(path, SEARCH)


def test_a_folder_is_no_ledger(tmp_path):
    with pytest.raises(FileError, match="is a folder or a device, not a ledger"):
        Ledger(tmp_path, SEARCH)


def test_a_place_that_cannot_be_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="cannot be"):
        Ledger(tmp_path / "file" / "a.jsonl", SEARCH)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
def test_a_forbidden_place_is_said(tmp_path):
    path = tmp_path / "a.jsonl"
    Ledger(path, SEARCH).close()
    path.chmod(0o400)
    with pytest.raises(FileError, match="cannot be written: Permission denied"):
        Ledger(path, SEARCH)
    path.chmod(0o000)
    with pytest.raises(FileError, match="cannot be read: Permission denied"):
        Ledger(path, SEARCH)


def refuse(*_):
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_ledger_that_may_not_be_written_is_said(path, monkeypatch):
    Ledger(path, SEARCH).close()
    stock = type(path).open
    monkeypatch.setattr(
        type(path), "open", lambda self, mode="r", **more: (refuse if mode == "ab" else stock)(self, mode)
    )
    with pytest.raises(FileError, match=r"cannot be written: Permission denied"):
        Ledger(path, SEARCH)


def test_a_ledger_that_may_not_be_read_is_said(path, monkeypatch):
    Ledger(path, SEARCH).close()
    monkeypatch.setattr(type(path), "read_bytes", refuse)
    with pytest.raises(FileError, match=r"cannot be read: Permission denied"):
        Ledger(path, SEARCH)


class FullDisk:
    """A file that takes so many lines and no more."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, text):
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        return self.file.write(text)

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_full_disk_loses_nothing_that_was_written(path):
    plan, model = STRATEGIES["ladder"], Model()
    ledger = Ledger(path, SEARCH)
    ledger.journal._file = FullDisk(ledger.journal._file, room=6)
    with pytest.raises(FileError, match=r"No space left on device\. What was finished is kept; make room") as caught:
        drive(plan, ledger.remembering(model, lambda: model.calls), steps=STEPS, budgets=BUDGETS, seed=1)
    assert "\n" not in str(caught.value)
    ledger.close()
    assert len(read_history(path)) == 6
    ended, _ = search(path, plan)
    assert told(ended) == told(alone(plan))


@contextmanager
def no_file_beyond(size):
    """The system itself refuses to let files grow, as a full disk does: in the middle of a line, and again on close."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="how a refused write ends is Linux's own")
@pytest.mark.parametrize("room", [20, 1200, 1234, 2500])
def test_a_disk_that_is_really_full(path, room):
    plan = STRATEGIES["ladder"]
    with no_file_beyond(room), pytest.raises(FileError, match="cannot be written: File too large"):
        search(path, plan)
    kept = path.read_bytes()
    assert len(kept) <= room
    ended, model = search(path, plan)
    whole = alone(plan)
    assert told(ended) == told(whole)
    known = max(kept.count(b"\n") - 1, 0)
    assert model.calls == 10 + sum(mask.budget for mask in list(whole.scores)[known:])
    assert path.read_bytes()[: kept.rfind(b"\n") + 1] == kept[: kept.rfind(b"\n") + 1]


@pytest.mark.parametrize(
    "text",
    ["", "{}\n", "garbage\n", "3\n", f"{HEADER}\n{{}}\n", f"{HEADER}\n{json.dumps(ENTRY | {'mask': '0'})}\n"],
)
def test_only_ledgers_have_a_history(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(SearchError, match=r"is not a ledger of a search\. Name the \.ledger\.jsonl file\."):
        read_history(path)


def test_no_file_no_history(tmp_path):
    with pytest.raises(FileError, match="cannot be read: No such file"):
        read_history(tmp_path / "none.jsonl")
    Ledger(tmp_path / "new.jsonl", SEARCH).close()
    assert read_history(tmp_path / "new.jsonl") == []


def test_plain_and_fitted_scores_of_a_mask_are_kept_apart(path):
    score, mask = toy_score(STEPS), Mask.uniform(STEPS, 3)
    ask, other = Ask.one(mask, ""), Score((0.25,), score(mask).arrivals)
    for known in ([], [("plain", score(mask)), ("fitted", other)]):
        ledger = Ledger(path, SEARCH)
        assert list(ledger.known.items()) == [((reuse, mask), found) for reuse, found in known]
        plain = ledger.remembering(many(score), lambda: 3, "plain")
        fitted = ledger.remembering(many(lambda mask: other), lambda: 5, "fitted")
        assert [*plain(ask), *fitted(ask)] == [score(mask), other]
        ledger.close()
    assert [step.phase for step in read_history(path)] == ["", ", fitted"]


def test_every_sample_is_kept_bit_for_bit(path):
    mask = Mask.uniform(STEPS, 3)
    losses = (0.1, 1 / 3, 5e-324, 1e300)
    score = Score(losses, (*[None] * 7, losses, (0.2, 2 / 3, 0.1, 1e-17), (1.0, 0.0, 0.0, 0.0), losses))
    ledger = Ledger(path, SEARCH)
    assert list(ledger.remembering(many(lambda mask: score), lambda: 1)(Ask.one(mask, "x"))) == [score]
    ledger.close()
    again = Ledger(path, SEARCH)
    again.close()
    assert again.known == {("plain", mask): score}
    assert read_history(path)[0].loss == score.loss


def test_a_ledger_of_an_older_format_is_refused_but_its_history_is_read(path):
    """Version 0.1 kept one number a mask, from which the samples cannot be had."""
    old = {"mask": "1000000000", "phase": "ladder", "calls": 7, "loss": 0.5, "arrivals": [None, 0.1]}
    path.parent.mkdir()
    path.write_text(json.dumps({"ledger": 1, "search": SEARCH}) + "\n" + json.dumps(old) + "\n")
    with pytest.raises(SearchError, match=f"with format = none, this one has {FORMAT}"):
        Ledger(path, SEARCH)
    (step,) = read_history(path)
    assert (str(step.mask), step.loss, step.phase, step.sample_calls) == ("1000000000", 0.5, "ladder", 7)


HOLDING = """
import sys
from budcache.strategies import Ledger
ledger = Ledger(sys.argv[1], {"model": "toy"})
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ending", ["closed", "killed"])
def test_a_ledger_that_another_process_writes_is_refused(path, ending):
    path.parent.mkdir()
    command = [sys.executable, "-c", HOLDING, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            content = path.read_bytes()
            with pytest.raises(FileError, match=r"in use by another process\. Wait for it, or choose another place"):
                Ledger(path, {"model": "toy"})
            assert path.read_bytes() == content
        finally:
            process.kill() if ending == "killed" else process.communicate("")
    Ledger(path, {"model": "toy"}).close()


def test_what_the_ledger_knows_is_not_scored(path):
    ledger = Ledger(path, SEARCH)
    mask, score = Mask.uniform(STEPS, 3), toy_score(STEPS)
    (known,) = ledger.remembering(many(score), lambda: 0)(Ask.one(mask, "one"))
    assert known == score(mask)
    assert next(ledger.remembering(many(refuse), refuse)(Ask.one(mask, "two"))) is known
    ledger.close()
    assert [step.phase for step in read_history(path)] == ["one"]


@given(asked=st.lists(st.sampled_from(list(Space(4, 2)) + list(Space(4, 3))), min_size=1, max_size=9), done=st.data())
def test_any_ask_is_answered_in_its_order(tmp_path_factory, asked, done):
    """Whatever of it is known already or stands in it twice; what is not known is scored once, when it is asked for."""
    path, score, scored = tmp_path_factory.mktemp("asked") / "a.jsonl", toy_score(4), []

    def count(mask):
        scored.append(mask)
        return score(mask)

    known = asked[: done.draw(st.integers(0, len(asked)))]
    for masks in (known, asked):
        ledger = Ledger(path, SEARCH)
        answers = ledger.remembering(many(count), lambda: len(scored))(Ask(tuple(masks), "any"))
        assert list(answers) == list(map(score, masks))
        ledger.close()
    assert scored == list(dict.fromkeys(asked))


def test_an_ask_that_is_left_in_the_middle_has_written_what_it_scored(path):
    ledger = Ledger(path, SEARCH)
    answers = ledger.remembering(many(toy_score(STEPS)), lambda: 1)(Ask(tuple(Space(STEPS, 3)), "left"))
    first = [next(answers) for _ in range(4)]
    ledger.close()
    assert [step.loss for step in read_history(path)] == [score.loss for score in first]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_the_history_of_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="cannot be read: it is a pipe"):
        read_history(tmp_path / "pipe")
