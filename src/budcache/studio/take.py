"""Take away: the ladder as a file, a line of Python, an export to another runtime, a place on the hub."""

from __future__ import annotations

from typing import Any

import gradio as gr

from budcache.studio import taking
from budcache.studio.rendering import Seen, alert, render
from budcache.studio.studio import UNIFORM, Studio
from budcache.studio.widgets import QUICK, slot

__all__ = ["TakeTab"]


class TakeTab:
    """The tab. `refresh` is called every second, with what the page shows."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.chosen, self.seen = gr.State([None, None]), gr.State({})  # ladder and budget, apart from their lists
        first = studio.ladders[0]
        with gr.Row(elem_classes="split-row"):
            with gr.Column(scale=2, min_width=280):
                self.ladder = gr.Dropdown(label="Ladder", choices=studio.ladders, value=first, filterable=False)
                budgets = list(studio.ladder(first).budgets)
                self.budget = gr.Dropdown(
                    label="Budget, in calls", choices=budgets, value=budgets[-1], filterable=False
                )
                self.download = gr.DownloadButton("Download the ladder", variant="primary")
                self.python = slot(elem_id="python")
            with gr.Column(scale=3, min_width=300):
                self.table = slot(elem_id="rungs")
        with gr.Row(elem_classes="split-row"):
            with gr.Column(scale=1, min_width=280):
                slot(value=render("heading.html.jinja", text="Another runtime", more="It runs there without budcache."))
                self.target = gr.Dropdown(label="Target", choices=taking.targets(), value="diffusers", filterable=False)
                self.runtime = gr.Dropdown(label="For", choices=[], value=None, visible=False, filterable=False)
                self.approximate = gr.Checkbox(
                    label="Approximate", info="Go on where the target cannot carry all of it."
                )
                self.whole = gr.Checkbox(
                    label="The whole pipeline", info="With diffusers: its files, too, and its LoRA."
                )
                self.export = gr.Button("Export")
                self.exported = slot(elem_id="exported")
                self.packed = gr.DownloadButton("Download the export", visible=False)
            with gr.Column(scale=1, min_width=280):
                more = "Log in first: hf auth login, or set HF_TOKEN."
                slot(value=render("heading.html.jinja", text="The hub", more=more))
                self.repository = gr.Textbox(label="Name", placeholder="owner/name", max_lines=1, elem_id="hub-name")
                self.private = gr.Checkbox(label="Private")
                self.push = gr.Button("Push to the hub")
                self.pushed = slot(elem_id="pushed")
        self._listen()

    @property
    def inputs(self) -> list[Any]:
        """What `refresh` is given."""
        return [self.chosen, self.seen]

    @property
    def outputs(self) -> list[Any]:
        """What `refresh` returns."""
        return [self.ladder, self.budget, self.download, self.python, self.table, self.chosen, self.seen]

    def _listen(self) -> None:
        self.ladder.input(
            lambda name, seen: self.refresh([name, None], seen), [self.ladder, self.seen], self.outputs, **QUICK
        )
        self.budget.input(self._budget, [self.budget, *self.inputs], self.outputs, **QUICK)
        self.target.input(self._runtimes, self.target, self.runtime, **QUICK)
        fields = [self.ladder, self.budget, self.target, self.runtime, self.approximate, self.whole]
        self.export.click(self._exported, fields, [self.exported, self.packed], show_progress="minimal")
        self.push.click(
            self._pushed, [self.ladder, self.repository, self.private], self.pushed, show_progress="minimal"
        )

    def loaded(self) -> list[Any]:
        """What a page that is opened shows first."""
        return self.refresh([None, None], {})

    @property
    def on_load(self) -> list[Any]:
        """What `loaded` returns."""
        return self.outputs

    def _budget(self, budget: int, chosen: list[Any], seen: dict[str, str]) -> list[Any]:
        return self.refresh([chosen[0], budget], seen)

    def refresh(self, chosen: list[Any], seen: dict[str, str] | None) -> list[Any]:
        """What is new since the page was last asked."""
        before, names, (name, budget) = Seen(seen), self.studio.ladders, chosen
        if name not in names or (name == UNIFORM and before.new("found", names[0])):
            name = names[0]  # what was found since takes the place of what needs no search
        ladder = self.studio.ladder(name)
        budget = budget if budget in ladder.budgets else ladder.budgets[-1]
        listed, moved = before.new("names", repr((names, name))), before.new("budget", repr((name, budget)))
        code = render("code.html.jinja", code=taking.python(self.studio, name, budget)) if moved else ""
        rungs = before.new("ladder", repr((name, ladder)))
        return [
            gr.update(choices=names, value=name) if listed else gr.skip(),
            gr.update(choices=list(ladder.budgets), value=budget) if moved else gr.skip(),
            gr.update(value=str(taking.file_of(self.studio, name))) if rungs else gr.skip(),
            code if moved else gr.skip(),
            render("rungs.html.jinja", ladder=ladder, name=name) if rungs else gr.skip(),
            [name, budget] if moved else gr.skip(),
            before.shown,
        ]

    def _runtimes(self, target: str) -> Any:
        found = taking.runtimes(target)
        return gr.update(choices=found, value=found[0] if found else None, visible=bool(found))

    def _exported(self, *values: Any) -> list[Any]:
        found, refused = taking.tried(lambda: taking.exported(self.studio, *values))
        if found is None:
            return [alert(refused), gr.update(visible=False)]
        path, made = found
        return [render("exported.html.jinja", made=made), gr.update(value=str(path), visible=True)]

    def _pushed(self, name: str, repository: str, private: bool) -> str:
        url, refused = taking.tried(lambda: taking.pushed(self.studio, name, repository or "", private, None))
        return alert(refused) if url is None else render("pushed.html.jinja", url=url)
