"""A comparison as a job of the studio: its options from the fields of the page, its cost, and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from budcache.comparison.methods import METHODS, UNTAUGHT, usual
from budcache.comparison.methods import title as named
from budcache.comparison.planning import expected
from budcache.errors import SearchError
from budcache.events import Watch
from budcache.jobs.compare import compare
from budcache.mask import MAX_STEPS
from budcache.studio.fields import OWN, Refusals, budgets_of, prompts_of, whole
from budcache.studio.settings import call_of, text_of
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.policy import Ladder
    from budcache.studio.job import Job
    from budcache.studio.runner import Body, Clock
    from budcache.studio.studio import Studio

__all__ = ["body", "choices", "cost", "read", "title"]

CALIBRATION = 16  # of the model's own prompts, for methods that have to learn
PART = 3  # of other prompts one in so many, the first ones, is for that


def choices() -> list[tuple[str, str]]:
    """The methods that can take part here, with their names for people."""
    return [(named(method), method) for method in (*usual(), *(each for each in METHODS if each.startswith("authors")))]


def read(
    studio: Studio,
    source: str,
    text: str | None,
    file: str | None,
    count: Any,
    steps: Any,
    budgets: str | None,
    methods: list[str],
    ladders: list[str],
    timed: bool,
    *settings: Any,
) -> tuple[dict[str, Any], Refusals]:
    """The options of a comparison, and why fields are refused if any are."""
    refused = Refusals()
    number = refused.take("steps", lambda: whole(steps, "steps", least=1))
    if not methods and not ladders:
        refused["methods"] = "there is nothing to compare. Choose a method or a ladder."
    found = refused.take("prompts", lambda: prompts_of(studio.model, source, text, file, count, "evaluation"))
    learned = None if found is None else refused.take("prompts", lambda: _split(studio, source, found, methods))
    options = {
        "prompts": learned and learned[1],
        "calibration": learned and learned[0],
        "steps": number,
        "budgets": refused.take("budgets", lambda: budgets_of(budgets, number or MAX_STEPS)),
        "methods": list(methods),
        "ladders": list(ladders),
        "timed": bool(timed),
        "call": call_of(studio, refused, *settings) if settings else {},
    }
    return options, refused


def _split(studio: Studio, source: str, found: list[str], methods: list[str]) -> tuple[list[str], list[str]]:
    """Prompts to learn on, and others to measure on: the model's own for both, or the first third of what there is."""
    from budcache import models

    if set(methods) <= set(UNTAUGHT):
        return [], found
    if source == OWN:
        return models.prompts(studio.model, "calibration")[:CALIBRATION], found
    part = max(2, len(found) // PART)
    if len(found) <= part:
        raise SearchError(
            f"there are {several(len(found), 'prompt')}, but methods have to be calibrated on two others than are "
            "measured on. Write three at least."
        )
    return found[:part], found[part:]


def cost(studio: Studio, options: dict[str, Any]) -> str:
    """What a comparison will cost, as a sentence."""
    planned = expected(
        steps=options["steps"],
        budgets=options["budgets"],
        prompts=options["prompts"],
        calibration=len(options["calibration"]),
        methods=options["methods"],
        policies=_policies(studio, options),
        timed=None if options["timed"] else (),
    )
    return f"{several(len(options['prompts']), 'prompt')}, {studio.worth(planned.sample_calls)}."


def title(options: dict[str, Any]) -> str:
    """A comparison in a few words."""
    count = several(len(options["methods"]) + len(options["ladders"]), "method")
    prompts, budgets = several(len(options["prompts"]), "prompt"), ", ".join(map(str, options["budgets"]))
    what = f"{count} at {budgets} of {options['steps']} calls"
    return ", ".join(filter(None, [what, prompts, text_of(options["call"])]))


def _policies(studio: Studio, options: dict[str, Any]) -> dict[str, Ladder]:
    """The ladders that take part, but for those that are not there any more."""
    return {f"policy:{name}.json": found for name in options["ladders"] if (found := studio.project.ladder(name))}


def body(studio: Studio) -> Body:
    """What the job does: `budcache.compare` into its folder, whose page grows."""

    def run(pipe: Any, job: Job, watch: Watch, clock: Clock) -> None:
        options = job.options
        compare(
            pipe,
            steps=options["steps"],
            budgets=options["budgets"],
            prompts=options["prompts"],
            calibration=options["calibration"],
            folder=studio.project.comparison(job.id),
            methods=options["methods"],
            policies=_policies(studio, options),
            call={**studio.call, **options.get("call", {})},
            batch=studio.batch,
            timed=None if options["timed"] else (),
            fps=studio.fps,
            grow=True,
            watch=watch,
            progress=False,
        )

    return run
