"""One thread has the model, and does one thing at a time with it."""

from __future__ import annotations

import threading
import warnings

import pytest

from budcache.errors import BudcacheWarning, FileError, PipelineError, SearchError
from budcache.events import Phase, Planned, Progress
from budcache.studio.job import Job, read_jobs
from budcache.studio.runner import Runner


class Steps:
    """A job that tells an event whenever it is let to, and remembers who has worked."""

    def __init__(self):
        self.go, self.done = threading.Semaphore(0), []

    def __call__(self, pipe, job, watch, clock):
        watch(Planned("search", (Phase("searching", job.options["events"]),)))
        for number in range(job.options["events"]):
            self.go.acquire()
            self.done.append((job.id, number))
            watch(Progress("search", "searching", number + 1, job.options["events"], number + 1))
        if "error" in job.options:
            raise eval(job.options["error"])
        warnings.warn("something is worth knowing.", BudcacheWarning, stacklevel=1)


@pytest.fixture
def work(tmp_path):
    """A runner with such jobs, and the drawings that it has made."""
    steps, drawn, made = Steps(), [], []

    def draw(pipe, name):
        if name == "bad":
            raise ValueError("shapes do not fit\nand more")
        drawn.append(name)

    def start(load=lambda: "pipe"):
        runner = Runner(load, {"search": steps, "compare": steps}, draw, tmp_path)
        made.append(runner)
        runner.start()
        return runner

    yield start, steps, drawn
    for runner in made:
        for _ in range(100):
            steps.go.release()
        runner.close()


def test_jobs_run_one_after_the_other(work, until):
    start, steps, _ = work
    runner = start()
    first = runner.submit("search", "one", {"events": 2})
    second = runner.submit("compare", "two", {"events": 1})
    until(lambda: first.state == "running")
    assert (second.state, runner.current, runner.waiting) == ("waiting", first, [second])
    for _ in range(3):
        steps.go.release()
    until(lambda: second.state == "done")
    assert steps.done == [("search-1", 0), ("search-1", 1), ("compare-1", 0)]
    assert first.state == "done"
    assert first.notes == ["something is worth knowing."]
    assert first.told.planned.sample_calls == first.told.progress.done == 2


def test_what_is_looked_at_comes_before_jobs_and_the_rest_after_them(work, until):
    start, steps, drawn = work
    runner = start()
    runner.submit("search", "one", {"events": 1})
    until(lambda: runner.current is not None)
    runner.submit("search", "two", {"events": 1})
    runner.ask(["now"], ["later"])
    assert runner.is_asked("now")
    steps.go.release()
    until(lambda: drawn == ["now"] and runner.current is not None)
    assert runner.current.id == "search-2"
    steps.go.release()
    until(lambda: runner.is_idle)
    assert drawn == ["now", "later"]


def test_a_job_is_paused_and_goes_on(work, until):
    start, steps, drawn = work
    runner = start()
    job = runner.submit("search", "one", {"events": 2})
    until(lambda: job.told.planned is not None)
    runner.pause(job)
    steps.go.release()
    steps.go.release()
    until(lambda: steps.done == [("search-1", 0)])
    runner.ask(["waits"])
    assert not threading.Event().wait(0.2)
    assert (len(steps.done), drawn, job.state) == (1, [], "paused")
    runner.go_on(job)
    until(lambda: job.state == "done")


def test_a_job_is_stopped_and_resumed(work, until):
    start, steps, _ = work
    runner = start()
    job, other = runner.submit("search", "one", {"events": 3}), runner.submit("search", "two", {"events": 1})
    until(lambda: job.state == "running")
    runner.stop(job)
    runner.stop(other)
    assert (job.state, other.state) == ("stopping", "stopped")
    steps.go.release()
    until(lambda: job.state == "stopped")
    assert len(steps.done) == 0 or steps.done == [("search-1", 0)]
    runner.resume(job)
    for _ in range(3):
        steps.go.release()
    until(lambda: job.state == "done")
    assert not job.can_resume
    runner.resume(job)
    assert job.state == "done"


def test_a_paused_job_can_be_stopped(work, until):
    start, steps, _ = work
    runner = start()
    job = runner.submit("search", "one", {"events": 2})
    until(lambda: job.told.planned is not None)
    runner.pause(job)
    steps.go.release()
    until(lambda: steps.done)
    runner.stop(job)
    until(lambda: job.state == "stopped")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        ("SearchError('there is no such thing. Choose another.')", "there is no such thing. Choose another."),
        ("RuntimeError('out of memory.\\nmore')", "str failed: out of memory."),
        ("KeyError()", "str failed: KeyError."),
    ],
)
def test_what_goes_wrong_is_a_sentence(error, sentence, work, until):
    assert SearchError
    start, _, _ = work
    runner = start()
    job = runner.submit("search", "one", {"events": 0, "error": error})
    until(lambda: job.is_over)
    assert (job.state, job.error) == ("failed", sentence)
    runner.resume(job)
    assert job.error == ""


def test_a_drawing_that_fails_says_why_and_others_go_on(work, until):
    start, _, drawn = work
    runner = start()
    runner.ask(["bad", "good"])
    until(lambda: runner.is_idle)
    assert (drawn, runner.failed) == (["good"], {"bad": "str failed: shapes do not fit."})
    runner.ask(["bad"])
    until(lambda: runner.is_idle)
    assert list(runner.failed) == ["bad"]


def test_a_model_that_cannot_be_loaded_refuses_everything_with_the_reason(work, until):
    start, _, drawn = work

    def load():
        raise SearchError("there is no such model. Name another.")

    runner = start(load)
    job = runner.submit("search", "one", {"events": 1})
    runner.ask(["a picture"])
    until(lambda: runner.is_idle and job.is_over)
    assert job.error == runner.refused == runner.failed["a picture"] == "there is no such model. Name another."
    assert drawn == []


def test_closing_interrupts_what_runs_and_the_next_runner_can_resume_it(work, until, tmp_path):
    start, steps, _ = work
    runner = start()
    job = runner.submit("search", "one", {"events": 2})
    until(lambda: job.state == "running")
    closing = threading.Thread(target=runner.close)
    closing.start()
    steps.go.release()
    closing.join(30)
    assert job.state == "interrupted"
    again = start()
    (known,) = again.jobs
    assert (known.id, known.state, known.options) == ("search-1", "interrupted", {"events": 2})
    again.resume(known)
    for _ in range(2):
        steps.go.release()
    until(lambda: known.state == "done")
    assert again.submit("search", "two", {"events": 0}).id == "search-2"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', '{"id":"a","kind":"b","title":"c","options":{}}'])
def test_a_damaged_file_is_no_job(text, tmp_path):
    Job("search-1", "search", "one", {}, "running").save(tmp_path)
    (tmp_path / "search-2.json").write_text(text)
    assert [(job.id, job.state) for job in read_jobs(tmp_path)] == [("search-1", "interrupted")]


def test_a_full_disk_does_not_end_the_thread_that_has_the_model(work, until, monkeypatch):
    start, steps, drawn = work
    runner = start()

    def full(job, folder):
        raise FileError("no space is left on the device.")

    monkeypatch.setattr(Job, "save", full)
    job = runner.submit("search", "one", {"events": 1})
    steps.go.release()
    until(lambda: job.is_over)
    assert "no space is left on the device." in job.notes
    runner.ask(["apple"])
    until(lambda: "apple" in drawn)


def test_names_of_files_that_cannot_be_read_are_taken(work, tmp_path):
    (tmp_path / "search-1.json").write_text("{")
    (tmp_path / ".search-2.tmp.json").write_text("{}")
    assert read_jobs(tmp_path) == []
    assert work[0]().submit("search", "one", {"events": 0}).id == "search-2"


def test_the_model_is_lent_between_drawings_but_not_while_a_job_has_it(work, until):
    start, steps, drawn = work
    runner = start()
    until(lambda: runner.is_loaded)
    with runner.lent() as pipe:
        assert pipe == "pipe"
        runner.ask(["waits"])
        assert not threading.Event().wait(0.2)
        assert drawn == []
    until(lambda: drawn == ["waits"])
    job = runner.submit("search", "one", {"events": 1})
    until(lambda: job.state == "running")
    with pytest.raises(PipelineError, match="search-1 has the model"), runner.lent():
        pass
    steps.go.release()
    until(lambda: job.is_over)
    with runner.lent() as pipe:
        assert pipe == "pipe"


def test_a_model_that_is_not_there_is_not_lent(work, until):
    hold = threading.Event()

    def load():
        hold.wait()
        raise SearchError("there is no such model. Name another.")

    runner = work[0](load)
    with pytest.raises(PipelineError, match="not loaded yet"), runner.lent():
        pass
    hold.set()
    until(lambda: runner.is_loaded)
    with pytest.raises(PipelineError, match="there is no such model"), runner.lent():
        pass
