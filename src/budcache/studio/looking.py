"""What somebody looks at: prompts, a seed and a budget, what is drawn of them by now, and what is drawn next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from budcache.errors import SearchError
from budcache.policy import Ladder
from budcache.samples.prompts import TRIED
from budcache.studio.drawing import Drawing, Drawn
from budcache.studio.fields import Refusals, lines, whole
from budcache.studio.settings import call_of, text_of
from budcache.studio.studio import Studio

__all__ = ["Cell", "Look", "View", "ask", "read", "view"]

MOST = 64  # prompts at once


@dataclass(frozen=True)
class Look:
    """What somebody looks at: prompts, a seed, a ladder, one of its budgets, and which prompt is on the stage.

    `call` are arguments of the pipeline beside those that the whole studio has: a size, a guidance.
    """

    prompts: tuple[str, ...]
    seed: int
    ladder: str
    budget: int
    chosen: int | None = None  # a prompt's place; None is the worst one
    call: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Look:
        """A look from what a page or a file holds of it."""
        return cls(**{**values, "prompts": tuple(values["prompts"])})

    @classmethod
    def last(cls, studio: Studio) -> Look:
        """What was last looked at in the project, or something to begin with."""
        known = studio.project.remembered("look")
        names = studio.ladders
        try:
            found = cls.of(known)
            return settled(studio, found if found.ladder in names else replace(found, ladder=names[0]))
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
    settings: str  # in a few words


def first_prompts(studio: Studio) -> tuple[str, ...]:
    """A prompt to begin with."""
    from budcache import models

    return (models.prompts(studio.model, "evaluation")[0] if studio.model in models.EMBEDDED else TRIED[0],)


def near(ladder: Ladder, budget: int) -> int:
    """The budget of a ladder that is nearest to one that is wished for."""
    return min(ladder.budgets, key=lambda each: abs(each - budget))


def settled(studio: Studio, look: Look) -> Look:
    """The same look with a budget that its ladder has."""
    return replace(look, budget=near(studio.ladder(look.ladder), look.budget))


def read(
    studio: Studio, text: str | None, seed: Any, ladder: str | None, budget: int, *settings: Any
) -> tuple[Look | None, Refusals]:
    """What the fields ask for, and why they are refused if they are."""
    refused = Refusals()
    prompts = refused.take("prompts", lambda: _prompts(text))
    number = refused.take("seed", lambda: whole(seed, "the seed", most=2**63 - 1))
    call = call_of(studio, refused, *settings) if settings else {}
    if prompts is None or number is None or refused:
        return None, refused
    name = ladder if ladder in studio.ladders else studio.ladders[0]
    return settled(studio, Look(prompts, number, name, budget, call=call)), refused


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
    call = tuple(look.call.items())
    return [Drawing(prompt, look.seed, ladder.steps, policy, call) for prompt in look.prompts]


def ask(studio: Studio, look: Look) -> None:
    """Have a look drawn: the prompt on the stage, the others, then the other budgets, the nearest first."""
    look = settled(studio, look)
    studio.project.remember("look", asdict(look))
    if not studio.runner.is_loaded:
        return  # asked again when it is
    pairs = list(zip(drawings(studio, look, None), drawings(studio, look, look.budget), strict=True))
    if look.chosen is not None:
        pairs = pairs[look.chosen : look.chosen + 1] + pairs
    wanted = [each for pair in pairs for each in pair]
    others = sorted(studio.ladder(look.ladder).budgets, key=lambda each: abs(each - look.budget))[1:]
    ahead = [each for budget in others for each in drawings(studio, look, budget)]
    studio.runner.ask(*([each for each in group if studio.album.found(each) is None] for group in (wanted, ahead)))


def view(studio: Studio, look: Look) -> View:
    """What is drawn of a look by now."""
    ladder, runner, album = studio.ladder(look.ladder), studio.runner, studio.album
    look = settled(studio, look)
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
    waits = waiting(studio) if missing else ""
    return View(look, ladder.steps, cells, stage, marks, waits, text_of(look.call))


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
        if job.state == "paused":
            return f"Waiting: a {what} is paused and keeps the model. Continue it, or stop it."
        return f"Waiting: a {what} has the model until it ends."
    return "Drawing …"
