"""Compare: methods side by side at the same budgets, with the report's page inside, growing while they are drawn."""

from __future__ import annotations

from typing import Any

import gradio as gr

from budcache.studio import comparing
from budcache.studio.jobs_view import JobView, PromptFields
from budcache.studio.rendering import Seen, alert, render
from budcache.studio.studio import Studio
from budcache.studio.widgets import QUICK, SettingsFields, as_left, slot

__all__ = ["CompareTab"]

FIELDS = ("methods", "prompts", "steps", "budgets", "settings")
LEFT = ("source", "text", "file", "count", "steps", "budgets", "methods", "ladders", "timed")  # and settings, as `call`
FIRST = ["fewer-steps", "uniform", "budcache"]  # methods that need little


class CompareTab:
    """The tab. `refresh` is called every second, with what the page shows."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        ladders = list(studio.project.ladders)
        with gr.Row(elem_classes="split-row"):
            with gr.Column(scale=2, min_width=280):
                self.methods = gr.CheckboxGroup(label="Methods", choices=comparing.choices(), value=FIRST)
                self.ladders = gr.CheckboxGroup(label="Ladders of this project", choices=ladders, value=ladders[:1])
                self.methods_refused = slot()
                self.budgets = gr.Textbox(
                    label="Budgets", info="Model calls: 8, or 5,6,8, or 4-12.", value="6,10", elem_id="compare-budgets"
                )
                self.budgets_refused = slot()
            with gr.Column(scale=3, min_width=300):
                self.prompts = PromptFields(studio, "compare", 8)
                self.timed = gr.Checkbox(label="Measure speed, too", info="Pairs of runs; takes longer.", value=False)
                with gr.Accordion("More", open=False, elem_classes="studio-more") as more:
                    self.steps = gr.Number(label="Steps of the full run", value=studio.steps, elem_id="compare-steps")
                    self.steps_refused = slot()
                    self.settings = SettingsFields("compare", more)
                self.cost = slot(elem_id="compare-cost")
                self.start = gr.Button("Compare", variant="primary")
        self.view = JobView(studio, "compare", "Comparisons")
        self.page = slot(elem_id="report")
        self._listen()

    @property
    def fields(self) -> list[Any]:
        """What is asked for."""
        others = [self.methods, self.ladders, self.timed, *self.settings.inputs]
        return [*self.prompts.inputs, self.steps, self.budgets, *others]

    @property
    def refused(self) -> list[Any]:
        """Where refusals stand, in the order of FIELDS."""
        others = [self.steps_refused, self.budgets_refused, self.settings.refused]
        return [self.methods_refused, self.prompts.refused, *others]

    @property
    def inputs(self) -> list[Any]:
        """What `refresh` is given."""
        return self.view.inputs

    @property
    def outputs(self) -> list[Any]:
        """What `refresh` returns."""
        return [*self.view.outputs, self.page, self.ladders]

    def refresh(self, name: str | None, seen: dict[str, str] | None) -> list[Any]:
        """What is new since the page was last asked."""
        *parts, shown = self.view.refresh(name, seen)
        before = Seen(shown)
        html = self.report(name or self.view.newest)
        page = html if before.new("page", html) else gr.skip()
        ladders = list(self.studio.project.ladders)
        choice = gr.update(choices=ladders) if before.new("ladders", repr(ladders)) else gr.skip()
        return [*parts, before.shown, page, choice]

    def report(self, name: str | None) -> str:
        """The report of a comparison, in a frame of its own; a new version of it has a new address."""
        if name is None:
            return ""
        page = self.studio.project.comparison(name) / "comparison.html"
        if not page.exists():
            return ""
        return render("report.html.jinja", job=name, version=page.stat().st_mtime_ns)

    def _listen(self) -> None:
        self.start.click(self.started, self.fields, [*self.refused, self.cost, *self.outputs], **QUICK)
        for field in self.fields:
            field.change(self.judged, self.fields, [*self.refused, self.cost], trigger_mode="always_last", **QUICK)

    def loaded(self) -> list[Any]:
        """What a page that is opened shows first."""
        last, known = self.studio.project.remembered("compare"), {value for _, value in comparing.choices()}
        values = [
            *self.prompts.left(last),
            last.get("budgets", "6,10"),
            [name for name in last.get("methods", FIRST) if name in known],
            last.get("timed", False),
            last.get("steps", self.studio.steps),
        ]
        values = as_left(values, last)
        values += self.settings.left(self.studio, last.get("call", {}))
        ladders = list(self.studio.project.ladders)
        chosen = [name for name in last.get("ladders", ladders[:1]) if name in ladders]
        *shown, _ = self.refresh(self.view.newest, {})
        return [*values, *shown, gr.update(choices=ladders, value=chosen)]

    @property
    def on_load(self) -> list[Any]:
        """What `loaded` returns."""
        fields = [self.budgets, self.methods, self.timed, self.steps, *self.settings.on_load]
        return [*self.prompts.inputs, *fields, *self.outputs]

    def judged(self, *values: Any) -> list[Any]:
        """What the fields say would cost; and refusals, but none for prompts that are still to be written."""
        options, refused = comparing.read(self.studio, *values)
        if refused and self.prompts.are_missing(*values):
            return [*self._alerts({**refused, "prompts": ""}), ""]
        cost = "" if refused else comparing.cost(self.studio, options)
        return [*self._alerts(refused), render("cost.html.jinja", text=cost)]

    def started(self, *values: Any) -> list[Any]:
        """Begin a comparison, unless a field is refused."""
        options, refused = comparing.read(self.studio, *values)
        if refused:
            return [*self._alerts(refused), "", *[gr.skip()] * len(self.outputs)]
        self.studio.project.remember("compare", {**dict(zip(LEFT, values, strict=False)), "call": options["call"]})
        job = self.studio.runner.submit("compare", comparing.title(options), options)
        cost = render("cost.html.jinja", text=comparing.cost(self.studio, options))
        return [*self._alerts({}), cost, *self.refresh(job.id, {})]

    def _alerts(self, refused: dict[str, str]) -> list[str]:
        return [alert(refused.get(name, "")) for name in FIELDS]
