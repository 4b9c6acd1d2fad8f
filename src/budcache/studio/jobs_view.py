"""What Find and Compare have in common: fields for prompts, and jobs that are seen live and steered."""

from __future__ import annotations

from typing import Any

import gradio as gr

from budcache.studio.fields import OWN, TEXT, UPLOAD, lines, prompt_sources
from budcache.studio.job import Job, Kind
from budcache.studio.panel import STATES, panel
from budcache.studio.rendering import Seen, render
from budcache.studio.studio import Studio
from budcache.studio.widgets import QUICK, slot

__all__ = ["JobView", "PromptFields"]

NONE: dict[Kind, str] = {
    "search": "Nothing has been searched yet. A search is seen here while it goes on: the best masks, and what every "
    "budget is worth on prompts put aside.",
    "compare": "Nothing has been compared yet. The report is seen here, and grows with every row.",
}


class PromptFields:
    """Prompts as text, as a file, or as a set that is there already."""

    def __init__(self, studio: Studio, tab: str, count: int) -> None:
        from budcache import models

        embedded = studio.model in models.EMBEDDED
        sources = prompt_sources(embedded)
        self.first, self.usual = OWN if embedded else TEXT, count
        first = self.first
        self.source = gr.Dropdown(
            label="Prompts from", choices=sources, value=first, filterable=False, elem_id=f"{tab}-source"
        )
        self.text = gr.Textbox(
            label="Prompts, one a line", lines=4, max_lines=12, visible=first == TEXT, elem_id=f"{tab}-text"
        )
        self.file = gr.File(
            label="Prompt file: text, JSONL with prompt, CSV with caption",
            visible=False,
            height=120,
            type="filepath",
            elem_id=f"{tab}-file",
        )
        self.refused = slot()
        self.count = gr.Number(
            label="How many of them at most", info="0 takes all.", value=count, elem_id=f"{tab}-count"
        )
        self.source.input(self._shown, self.source, [self.text, self.file], show_progress="hidden", queue=False)

    @property
    def inputs(self) -> list[Any]:
        """The fields."""
        return [self.source, self.text, self.file, self.count]

    def left(self, last: dict[str, Any]) -> list[Any]:
        """The fields as they were left; a file that was chosen is gone with its page."""
        known = last.get("source") in dict(self.source.choices) and last.get("source") != UPLOAD
        source = last["source"] if known else self.first
        text = gr.update(value=last.get("text") or "", visible=source == TEXT)
        return [source, text, gr.update(value=None, visible=False), last.get("count", self.usual)]

    @staticmethod
    def are_missing(source: str, text: str | None, file: str | None, *others: Any) -> bool:
        """Whether somebody has yet to write or choose them."""
        return (source == TEXT and not lines(text)) or (source == UPLOAD and not file)

    def _shown(self, source: str) -> list[Any]:
        return [gr.update(visible=source == TEXT), gr.update(visible=source == UPLOAD)]


class JobView:
    """The jobs of one kind: one of them is chosen, shown live, and steered."""

    def __init__(self, studio: Studio, kind: Kind, what: str) -> None:
        self.studio, self.kind = studio, kind
        # What is chosen, apart from the list: whose choices change, and Gradio would refuse an answer to older ones.
        self.chosen, self.seen = gr.State(None), gr.State({})
        with gr.Column(visible=bool(self.mine)) as self.some:
            self.jobs = gr.Dropdown(
                label=what, choices=self.choices, value=self.newest, filterable=False, elem_classes="studio-jobs"
            )
            with gr.Row(elem_classes="steering"):
                self.pause = gr.Button("Pause", size="sm", interactive=False)
                self.stop = gr.Button("Stop", size="sm", interactive=False)
                self.resume = gr.Button("Resume", size="sm", interactive=False)
        self.panel = slot(elem_id=f"{kind}-panel")
        self.pause.click(self._pause, self.inputs, self.outputs, **QUICK)
        self.stop.click(self._stop, self.inputs, self.outputs, **QUICK)
        self.resume.click(self._resume, self.inputs, self.outputs, **QUICK)
        self.jobs.input(self.refresh, [self.jobs, self.seen], self.outputs, **QUICK)

    @property
    def mine(self) -> list[Job]:
        """Jobs of this kind, the newest first."""
        return [job for job in reversed(self.studio.runner.jobs) if job.kind == self.kind]

    @property
    def choices(self) -> list[tuple[str, str]]:
        """What can be chosen: the names of jobs say how they stand."""
        return [(f"{job.id}: {job.title} ({STATES[job.state]})", job.id) for job in self.mine]

    @property
    def newest(self) -> str | None:
        """The one to look at: what runs, or what was asked for last."""
        current = self.studio.runner.current
        here = [current] if current is not None and current.kind == self.kind else self.mine
        return here[0].id if here else None

    @property
    def inputs(self) -> list[Any]:
        """What `refresh` is given."""
        return [self.chosen, self.seen]

    @property
    def outputs(self) -> list[Any]:
        """What `refresh` returns."""
        return [self.some, self.jobs, self.pause, self.stop, self.resume, self.panel, self.chosen, self.seen]

    def refresh(self, name: str | None, seen: dict[str, str] | None) -> list[Any]:
        """What is new since the page was last asked."""
        before, job = Seen(seen), self.studio.runner.job(name)
        if job is None:
            name = self.newest
            job = self.studio.runner.job(name)
        choices = self.choices
        html = render("empty.html.jinja", text=NONE[self.kind]) if job is None else panel(self.studio, job)
        listed = before.new("jobs", repr((choices, name)))
        state = "" if job is None else job.state
        steered = before.new("state", state)
        return [
            gr.update(visible=job is not None) if listed else gr.skip(),
            gr.update(choices=choices, value=name) if listed else gr.skip(),
            *(self._buttons(job) if steered else [gr.skip()] * 3),
            html if before.new("panel", html) else gr.skip(),
            name if before.new("chosen", str(name)) else gr.skip(),
            before.shown,
        ]

    def _buttons(self, job: Job | None) -> list[Any]:
        state = "" if job is None else job.state
        paused = state == "paused"
        return [
            gr.update(value="Continue" if paused else "Pause", interactive=state in ("running", "paused")),
            gr.update(interactive=state in ("waiting", "running", "paused")),
            gr.update(interactive=job is not None and job.can_resume),
        ]

    def _pause(self, name: str | None, seen: dict[str, str] | None) -> list[Any]:
        job = self.studio.runner.job(name)
        if job is not None:
            (self.studio.runner.go_on if job.state == "paused" else self.studio.runner.pause)(job)
        return self.refresh(name, seen)

    def _stop(self, name: str | None, seen: dict[str, str] | None) -> list[Any]:
        job = self.studio.runner.job(name)
        if job is not None:
            self.studio.runner.stop(job)
        return self.refresh(name, seen)

    def _resume(self, name: str | None, seen: dict[str, str] | None) -> list[Any]:
        job = self.studio.runner.job(name)
        if job is not None:
            self.studio.runner.resume(job)
        return self.refresh(name, seen)
