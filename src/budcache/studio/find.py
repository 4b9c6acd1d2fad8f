"""Find: prompts in, a ladder out, and the search seen while it goes on."""

from __future__ import annotations

from typing import Any

import gradio as gr

from budcache.studio import searching
from budcache.studio.jobs_view import JobView, PromptFields
from budcache.studio.rendering import Seen, alert, render
from budcache.studio.studio import Studio
from budcache.studio.widgets import QUICK, SettingsFields, as_left, slot

__all__ = ["FindTab"]

FIELDS = ("prompts", "steps", "budgets", "minutes", "settings")
LEFT = ("source", "text", "file", "count", "steps", "budgets", "minutes", "refine")  # and settings, as `call`
REFINE = [
    ("blend past outputs (fit)", "fit"),
    ("blend and align them all together (full, several times the cost)", "full"),
    ("repeat the last output (none)", "none"),
]


class FindTab:
    """The tab. `refresh` is called every second, with what the page shows."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        with gr.Row(elem_classes="split-row"):
            with gr.Column(scale=2, min_width=280):
                self.prompts = PromptFields(studio, "find", 16)
                self.budgets = gr.Textbox(
                    label="Budgets", info="Model calls: 8, or 5,6,8, or 4-12.", value="4-12", elem_id="find-budgets"
                )
                self.budgets_refused = slot()
                self.minutes = gr.Number(
                    label="Minutes to spend", info="0 is no limit.", value=0, elem_id="find-minutes"
                )
                self.minutes_refused = slot()
                with gr.Accordion("More", open=False, elem_classes="studio-more") as more:
                    self.steps = gr.Number(label="Steps of the full run", value=studio.steps, elem_id="find-steps")
                    self.steps_refused = slot()
                    self.refine = gr.Dropdown(
                        label="What to make of the masks", choices=REFINE, value="fit", filterable=False
                    )
                    self.settings = SettingsFields("find", more)
                self.cost = slot(elem_id="find-cost")
                self.start = gr.Button("Search", variant="primary")
            with gr.Column(scale=3, min_width=300):
                self.view = JobView(studio, "search", "Searches")
        self._listen()

    @property
    def fields(self) -> list[Any]:
        """What is asked for."""
        return [*self.prompts.inputs, self.steps, self.budgets, self.minutes, self.refine, *self.settings.inputs]

    @property
    def refused(self) -> list[Any]:
        """Where refusals stand, in the order of FIELDS."""
        others = [self.steps_refused, self.budgets_refused, self.minutes_refused, self.settings.refused]
        return [self.prompts.refused, *others]

    @property
    def inputs(self) -> list[Any]:
        """What `refresh` is given."""
        return self.view.inputs

    @property
    def outputs(self) -> list[Any]:
        """What `refresh` returns."""
        return self.view.outputs

    def refresh(self, *values: Any) -> list[Any]:
        """What is new since the page was last asked."""
        return self.view.refresh(*values)

    def _listen(self) -> None:
        self.start.click(self.started, self.fields, [*self.refused, self.cost, *self.view.outputs], **QUICK)
        for field in self.fields:
            field.change(self.judged, self.fields, [*self.refused, self.cost], trigger_mode="always_last", **QUICK)

    def loaded(self) -> list[Any]:
        """What a page that is opened shows first: the fields as they were left, and the newest search."""
        last = self.studio.project.remembered("find")
        values = [
            *self.prompts.left(last),
            last.get("budgets", "4-12"),
            last.get("minutes", 0),
            last.get("steps", self.studio.steps),
            last.get("refine", "fit"),
        ]
        values = as_left(values, last)
        values += self.settings.left(self.studio, last.get("call", {}))
        return [*values, *self.view.refresh(self.view.newest, {})]

    @property
    def on_load(self) -> list[Any]:
        """What `loaded` returns."""
        fields = [self.budgets, self.minutes, self.steps, self.refine, *self.settings.on_load]
        return [*self.prompts.inputs, *fields, *self.view.outputs]

    def judged(self, *values: Any) -> list[Any]:
        """What the fields say would cost; and refusals, but none for prompts that are still to be written."""
        options, refused = searching.read(self.studio, *values)
        if refused and self.prompts.are_missing(*values):
            return [*self._alerts({**refused, "prompts": ""}), ""]
        cost = "" if refused else searching.cost(self.studio, options)
        return [*self._alerts(refused), render("cost.html.jinja", text=cost)]

    def started(self, *values: Any) -> list[Any]:
        """Begin a search, unless a field is refused."""
        options, refused = searching.read(self.studio, *values)
        if refused:
            return [*self._alerts(refused), "", *[gr.skip()] * len(self.view.outputs)]
        self.studio.project.remember("find", {**dict(zip(LEFT, values, strict=False)), "call": options["call"]})
        job = self.studio.runner.submit("search", searching.title(options), options)
        cost = render("cost.html.jinja", text=searching.cost(self.studio, options))
        return [*self._alerts({}), cost, *self.view.refresh(job.id, Seen().shown)]

    def _alerts(self, refused: dict[str, str]) -> list[str]:
        return [alert(refused.get(name, "")) for name in FIELDS]
