"""Look: a prompt, a seed and a budget, the picture at that budget beside the full run; several prompts, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import gradio as gr

from budcache.errors import SearchError
from budcache.policy import Ladder
from budcache.report.gallery import AMPLIFIED
from budcache.samples.prompts import TRIED
from budcache.studio.drawing import Drawing, Drawn
from budcache.studio.fields import Refusals, lines, whole
from budcache.studio.rendering import Seen, alert, render
from budcache.studio.studio import Studio
from budcache.wording import several

__all__ = ["Look", "LookTab", "View", "ask", "read", "view"]

MOST = 64  # prompts at once


@dataclass(frozen=True)
class Look:
    """What somebody looks at: prompts, a seed, a ladder, one of its budgets, and which prompt is on the stage."""

    prompts: tuple[str, ...]
    seed: int
    ladder: str
    budget: int
    chosen: int | None = None  # a prompt's place; None is the worst one

    @classmethod
    def last(cls, studio: Studio) -> Look:
        """What was last looked at in the project, or something to begin with."""
        known = studio.project.remembered("look")
        names = studio.ladders
        try:
            found = cls(**{**known, "prompts": tuple(known["prompts"])})
            name = found.ladder if found.ladder in names else names[0]
            return replace(found, ladder=name, budget=near(studio.ladder(name), found.budget))
        except (KeyError, TypeError):
            first = studio.ladder(names[0])
            return cls(first_prompts(studio), 0, names[0], near(first, first.steps // 3))


class Cell(NamedTuple):
    """One prompt: what is drawn of it."""

    place: int
    prompt: str
    full: Drawn | None
    drawn: Drawn | None
    failed: str


class Mark(NamedTuple):
    """One rung of the ladder below the slider, and of how many prompts it is drawn."""

    budget: int
    drawn: int
    of: int
    here: bool


class View(NamedTuple):
    """What the page shows of a look."""

    look: Look
    steps: int
    cells: list[Cell]  # the worst first
    stage: Cell
    marks: list[Mark]
    waits: str  # for what, where something is still to be drawn


def first_prompts(studio: Studio) -> tuple[str, ...]:
    """A prompt to begin with."""
    from budcache import models

    return (models.prompts(studio.model, "evaluation")[0] if studio.model in models.EMBEDDED else TRIED[0],)


def near(ladder: Ladder, budget: int) -> int:
    """The budget of a ladder that is nearest to one that is wished for."""
    return min(ladder.budgets, key=lambda each: abs(each - budget))


def read(studio: Studio, text: str | None, seed: Any, ladder: str | None, budget: int) -> tuple[Look | None, Refusals]:
    """What the fields ask for, and why they are refused if they are."""
    refused = Refusals()
    prompts = refused.take("prompts", lambda: _prompts(text))
    number = refused.take("seed", lambda: whole(seed, "the seed", most=2**63 - 1))
    if prompts is None or number is None:
        return None, refused
    name = ladder if ladder in studio.ladders else studio.ladders[0]
    return Look(prompts, number, name, near(studio.ladder(name), budget)), refused


def _prompts(text: str | None) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(lines(text)))
    if not found:
        raise SearchError("there is nothing to draw. Write a prompt, or several, one a line.")
    if len(found) > MOST:
        raise SearchError(f"there are {len(found)} prompts, but a grid holds {MOST}. Compare on that many instead.")
    return found


def drawings(studio: Studio, look: Look, budget: int | None) -> list[Drawing]:
    """One drawing a prompt, at a budget or in full."""
    ladder = studio.ladder(look.ladder)
    policy = None if budget is None else ladder[budget]
    return [Drawing(prompt, look.seed, ladder.steps, policy) for prompt in look.prompts]


def ask(studio: Studio, look: Look) -> None:
    """Have a look drawn: the prompt on the stage, the others, then the other budgets, the nearest first."""
    studio.project.remember("look", asdict(look))
    if not studio.runner.is_loaded:
        return  # asked again when it is
    wanted = [each for pair in zip(drawings(studio, look, None), drawings(studio, look, look.budget)) for each in pair]
    if look.chosen is not None and look.chosen < len(look.prompts):
        here = wanted[2 * look.chosen : 2 * look.chosen + 2]
        wanted = here + [each for each in wanted if each not in here]
    others = sorted(studio.ladder(look.ladder).budgets, key=lambda each: abs(each - look.budget))[1:]
    ahead = [each for budget in others for each in drawings(studio, look, budget)]
    studio.runner.ask(*([each for each in group if studio.album.found(each) is None] for group in (wanted, ahead)))


def view(studio: Studio, look: Look) -> View:
    """What is drawn of a look by now."""
    ladder, runner, album = studio.ladder(look.ladder), studio.runner, studio.album
    look = replace(look, budget=near(ladder, look.budget))
    full, drawn = drawings(studio, look, None), drawings(studio, look, look.budget)
    cells = [
        Cell(
            place, prompt, album.found(one), album.found(other), runner.failed.get(one) or runner.failed.get(other, "")
        )
        for place, (prompt, one, other) in enumerate(zip(look.prompts, full, drawn, strict=True))
    ]
    cells.sort(key=_badness)
    stage = next((cell for cell in cells if cell.place == look.chosen), cells[0])
    marks = [
        Mark(
            budget,
            sum(album.found(each) is not None for each in drawings(studio, look, budget)),
            len(look.prompts),
            budget == look.budget,
        )
        for budget in ladder.budgets
    ]
    missing = any(cell.drawn is None and not cell.failed for cell in cells)
    return View(look, ladder.steps, cells, stage, marks, waiting(studio) if missing else "")


def _badness(cell: Cell) -> tuple[bool, float, int]:
    """The worst first; what is not drawn yet comes last, in the order of the prompts."""
    psnr = None if cell.drawn is None else cell.drawn.psnr
    return psnr is None, psnr or 0.0, cell.place


def waiting(studio: Studio) -> str:
    """For what a drawing waits, as a sentence."""
    runner = studio.runner
    if not runner.is_loaded:
        return f"Loading {studio.model} …"
    job = runner.current
    if job is not None:
        what = "search" if job.kind == "search" else "comparison"
        held = f"is paused and keeps the model. Continue or stop the {what}" if job.state == "paused" else "has the model"
        return f"Waiting: a {what} {held}." if job.state == "paused" else f"Waiting: a {what} {held} until it ends."
    return "Drawing …"


class LookTab:
    """The tab. `refresh` is called every second, with what the page shows."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        last = Look.last(studio)
        self.look, self.seen = gr.State(asdict(last)), gr.State({})
        with gr.Row(elem_classes="split-row"):
            with gr.Column(scale=2, min_width=280):
                self.prompts = gr.Textbox(
                    label="Prompt", info="Several, one a line, become a grid with the worst first.", lines=3, max_lines=12
                )
                self.prompts_refused = gr.HTML()
                self.seed = gr.Number(label="Seed", value=0, precision=0, minimum=0)
                self.seed_refused = gr.HTML()
                self.ladder = gr.Dropdown(label="Ladder", choices=studio.ladders, value=last.ladder, filterable=False)
                self.draw = gr.Button("Draw", variant="primary")
                self.rail = gr.HTML(js_on_load=RAIL, elem_id="rail")
                self.marks = gr.HTML()
            with gr.Column(scale=3, min_width=300):
                self.stage = gr.HTML(elem_id="stage")
        self.grid = gr.HTML(js_on_load=GRID, elem_id="grid")
        self._listen()

    @property
    def inputs(self) -> list[Any]:
        """What `refresh` is given."""
        return [self.look, self.seen, self.ladder]

    @property
    def outputs(self) -> list[Any]:
        """What `refresh` returns."""
        return [self.rail, self.stage, self.marks, self.grid, self.ladder, self.look, self.seen]

    def _listen(self) -> None:
        quick: dict[str, Any] = {"show_progress": "hidden", "queue": False}
        refused = [self.prompts_refused, self.seed_refused]
        fields = [self.prompts, self.seed, self.ladder, self.look]
        for event in (self.draw.click, self.ladder.input, self.seed.submit):
            event(self.drawn, fields, [*refused, *self.outputs], **quick)
        self.rail.input(self.moved, [self.look, self.seen], self.outputs, trigger_mode="always_last", **quick)
        self.grid.select(self.chosen, [self.look, self.seen], self.outputs, **quick)

    def loaded(self) -> list[Any]:
        """What a page that is opened shows first: the fields as they were left."""
        last = Look.last(self.studio)
        ask(self.studio, last)
        fields = ["\n".join(last.prompts), last.seed, "", ""]
        return [*fields, *self._shown(last, Seen(), choices=True)]

    @property
    def on_load(self) -> list[Any]:
        """What `loaded` returns."""
        return [self.prompts, self.seed, self.prompts_refused, self.seed_refused, *self.outputs]

    def drawn(self, text: str, seed: Any, ladder: str, look: dict[str, Any]) -> list[Any]:
        """Draw what the fields say."""
        found, refused = read(self.studio, text, seed, ladder, look["budget"])
        alerts = [alert(refused.get(name, "")) for name in ("prompts", "seed")]
        if found is None:
            return [*alerts, *[gr.skip()] * len(self.outputs)]
        ask(self.studio, found)
        return [*alerts, *self._shown(found, Seen())]

    def moved(self, look: dict[str, Any], seen: dict[str, str], event: gr.EventData) -> list[Any]:
        """The slider of budgets was moved."""
        found = replace(_look(look), budget=int(event.budget))
        ask(self.studio, found)
        return self._shown(found, Seen(seen))

    def chosen(self, look: dict[str, Any], seen: dict[str, str], event: gr.EventData) -> list[Any]:
        """A prompt of the grid was chosen for the stage."""
        found = replace(_look(look), chosen=int(event.sample))
        return self._shown(found, Seen(seen))

    def refresh(self, look: dict[str, Any], seen: dict[str, str], ladder: str) -> list[Any]:
        """What is new since the page was last asked."""
        found, before = _look(look), Seen(seen)
        if before.new("ready", str(self.studio.runner.is_loaded)):
            ask(self.studio, found)
        return self._shown(found, before, choices=before.new("ladders", repr(self.studio.ladders)))

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


def _look(values: dict[str, Any]) -> Look:
    return Look(**{**values, "prompts": tuple(values["prompts"])})


def spoken(cells: Sequence[Cell]) -> str:
    """How far a grid is, for people to read."""
    return f"{sum(cell.drawn is not None for cell in cells)} of {several(len(cells), 'prompt')} drawn"


# What these do in the page; `templates/studio.js` has what needs no answer from here.
RAIL = """
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
