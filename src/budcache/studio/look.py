"""Look: the picture at a budget beside the full run, and a slider of budgets; several prompts, the worst first."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import gradio as gr

from budcache.report.gallery import AMPLIFIED
from budcache.studio.looking import Look, ask, read, view
from budcache.studio.rendering import Seen, alert, render
from budcache.studio.studio import UNIFORM, Studio
from budcache.studio.widgets import QUICK, SettingsFields, slot

__all__ = ["LookTab"]

FIELDS = ("prompts", "seed", "settings")


class LookTab:
    """The tab. `refresh` is called every second, with what the page shows."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        last = Look.last(studio)
        self.look, self.seen = gr.State(asdict(last)), gr.State({})
        with gr.Row(elem_classes="split-row"):
            with gr.Column(scale=2, min_width=280):
                self.prompts = gr.Textbox(
                    label="Prompt",
                    info="Several, one a line, become a grid with the worst first.",
                    lines=3,
                    max_lines=12,
                    elem_id="look-prompts",
                )
                self.prompts_refused = slot()
                self.seed = gr.Number(label="Seed", value=0, elem_id="look-seed")
                self.seed_refused = slot()
                self.ladder = gr.Dropdown(label="Ladder", choices=studio.ladders, value=last.ladder, filterable=False)
                with gr.Accordion("More", open=False, elem_id="look-more", elem_classes="studio-more") as more:
                    self.settings = SettingsFields("look", more)
                self.draw = gr.Button("Draw", variant="primary")
                self.rail = slot(js_on_load=RAIL, elem_id="rail")
                self.marks = slot()
            with gr.Column(scale=3, min_width=300):
                self.stage = slot(elem_id="stage")
        self.grid = slot(js_on_load=GRID, elem_id="grid")
        self._listen()

    @property
    def inputs(self) -> list[Any]:
        """What `refresh` is given."""
        return [self.look, self.seen]

    @property
    def outputs(self) -> list[Any]:
        """What `refresh` returns."""
        return [self.rail, self.stage, self.marks, self.grid, self.ladder, self.look, self.seen]

    @property
    def refused(self) -> list[Any]:
        """Where refusals stand, in the order of FIELDS."""
        return [self.prompts_refused, self.seed_refused, self.settings.refused]

    def _listen(self) -> None:
        fields = [self.prompts, self.seed, self.ladder, *self.settings.inputs, self.look, self.seen]
        submits = (each.submit for each in (self.prompts, self.seed, *self.settings.inputs))
        for event in (self.draw.click, self.ladder.input, *submits):
            event(self.drawn, fields, [*self.refused, *self.outputs], **QUICK)
        self.rail.input(self.moved, [self.look, self.seen], self.outputs, trigger_mode="always_last", **QUICK)
        self.grid.select(self.chosen, [self.look, self.seen], self.outputs, **QUICK)

    def loaded(self) -> list[Any]:
        """What a page that is opened shows first: the fields as they were left."""
        last, seen = Look.last(self.studio), Seen()
        seen.new("newest", self.studio.ladders[0])
        ask(self.studio, last)
        fields = ["\n".join(last.prompts), last.seed, *self.settings.left(self.studio, last.call)]
        return [*fields, *[""] * len(FIELDS), *self._shown(last, seen, choices=True)]

    @property
    def on_load(self) -> list[Any]:
        """What `loaded` returns."""
        return [self.prompts, self.seed, *self.settings.on_load, *self.refused, *self.outputs]

    def drawn(self, text: str, seed: Any, ladder: str, *rest: Any) -> list[Any]:
        """Draw what the fields say."""
        *settings, look, seen = rest
        found, refused = read(self.studio, text, seed, ladder, look["budget"], *settings)
        alerts = [alert(refused.get(name, "")) for name in FIELDS]
        if found is None:
            return [*alerts, *[gr.skip()] * len(self.outputs)]
        ask(self.studio, found)
        return [*alerts, *self._shown(found, Seen(seen))]

    def moved(self, look: dict[str, Any], seen: dict[str, str], event: gr.EventData) -> list[Any]:
        """The slider of budgets was moved."""
        found = replace(Look.of(look), budget=int(event.budget))
        ask(self.studio, found)
        return self._shown(found, Seen(seen))

    def chosen(self, look: dict[str, Any], seen: dict[str, str], event: gr.EventData) -> list[Any]:
        """A prompt of the grid was chosen for the stage."""
        found = replace(Look.of(look), chosen=int(event.sample))
        return self._shown(found, Seen(seen))

    def refresh(self, look: dict[str, Any], seen: dict[str, str]) -> list[Any]:
        """What is new since the page was last asked; nothing before it has been told what was left."""
        if not seen:
            return [gr.skip()] * len(self.outputs)
        found, before, newest = Look.of(look), Seen(seen), self.studio.ladders[0]
        if before.new("newest", newest) and found.ladder == UNIFORM:
            found = replace(found, ladder=newest)  # what was found since takes the place of what needs no search
            ask(self.studio, found)
        if before.new("ready", str(self.studio.runner.is_loaded)):
            ask(self.studio, found)
        shown = self._shown(found, before, choices=before.new("ladders", repr(self.studio.ladders)))
        if shown[-2] == look:  # or an answer that is late would undo what was chosen meanwhile
            shown[-2] = gr.skip()
        return shown

    def _shown(self, look: Look, seen: Seen, choices: bool = False) -> list[Any]:
        now = view(self.studio, look)
        parts = {
            "rail": render("rail.html.jinja", view=now),
            "stage": render("stage.html.jinja", view=now, cell=now.stage, amplified=AMPLIFIED),
            "marks": render("marks.html.jinja", view=now),
            "grid": render("grid.html.jinja", view=now) if len(now.cells) > 1 else "",
        }
        html = [text if seen.new(name, text) else gr.skip() for name, text in parts.items()]
        ladders = gr.Dropdown(choices=self.studio.ladders, value=now.look.ladder) if choices else gr.skip()
        return [*html, ladders, asdict(now.look), seen.shown]


# What these do in the page; `templates/studio.js` has what needs no answer from here.
RAIL = """
let known = null;
const begin = () => { // another ladder has other budgets, and the slider begins where the server says
  const rail = element.querySelector("input");
  if (rail && rail.dataset.budgets !== known) { known = rail.dataset.budgets; rail.value = rail.getAttribute("value"); }
};
watch("value", begin);
element.addEventListener("input", (event) => {
  const rail = event.target, budget = Number(rail.dataset.budgets.split(",")[rail.value]);
  element.querySelector("output").textContent = `${budget} of ${rail.dataset.steps} calls`;
  rail.setAttribute("aria-valuetext", `${budget} of ${rail.dataset.steps} calls`);
  trigger("input", { budget });
});
"""
GRID = """
element.addEventListener("click", (event) => {
  const cell = event.target.closest("[data-sample]");
  if (cell) trigger("select", { sample: Number(cell.dataset.sample) });
});
"""
