"""A search as a job of the studio: its options from the fields of the page, its cost, and what it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from budcache.events import Planned, Watch
from budcache.jobs.estimate import estimate
from budcache.jobs.search import search
from budcache.mask import MAX_STEPS
from budcache.strategies import Limits
from budcache.studio.fields import Refusals, budgets_of, minutes_of, prompts_of, whole
from budcache.studio.settings import call_of, text_of
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.studio.job import Job
    from budcache.studio.runner import Body, Clock
    from budcache.studio.studio import Studio

__all__ = ["body", "cost", "read", "title"]


@dataclass(frozen=True)
class Worked(Limits):
    """Limits for which the time of a pause does not count."""

    clock: Any = None

    def reached(self, calls: int, seconds: float, evaluations: int) -> str | None:
        """Which limit has been reached, for people to read."""
        return super().reached(calls, seconds - self.clock.paused, evaluations)


def read(
    studio: Studio,
    source: str,
    text: str | None,
    file: str | None,
    count: Any,
    steps: Any,
    budgets: str | None,
    minutes: Any,
    refine: str,
    *settings: Any,
) -> tuple[dict[str, Any], Refusals]:
    """The options of a search, and why fields are refused if any are."""
    refused = Refusals()
    number = refused.take("steps", lambda: whole(steps, "steps", least=1))
    options = {
        "prompts": refused.take("prompts", lambda: prompts_of(studio.model, source, text, file, count, "calibration")),
        "steps": number,
        "budgets": refused.take("budgets", lambda: budgets_of(budgets, number or MAX_STEPS)),
        "minutes": refused.take("minutes", lambda: minutes_of(minutes)),
        "refine": refine,
        "call": call_of(studio, refused, *settings) if settings else {},
    }
    if not refused:
        refused.take("prompts", lambda: planned(options))
    return options, refused


def planned(options: dict[str, Any]) -> Planned:
    """What a search will cost."""
    asked = {name: options[name] for name in ("steps", "budgets", "prompts", "refine")}
    return estimate(**asked, strategy="paths" if options["minutes"] else None)  # a limit might end before the last mask


def cost(studio: Studio, options: dict[str, Any]) -> str:
    """What a search will cost, as a sentence."""
    told = planned(options)
    note = f"; {told.note}" * bool(told.note)
    return f"{several(len(options['prompts']), 'prompt')}, {studio.worth(told.sample_calls)}{note}."


def title(options: dict[str, Any]) -> str:
    """A search in a few words."""
    budgets, prompts = options["budgets"], several(len(options["prompts"]), "prompt")
    row = budgets == list(range(budgets[0], budgets[-1] + 1)) and len(budgets) > 2
    which = f"{budgets[0]} to {budgets[-1]}" if row else ", ".join(map(str, budgets))
    return ", ".join(filter(None, [f"{which} of {options['steps']} calls", prompts, text_of(options["call"])]))


def body(studio: Studio) -> Body:
    """What the job does: `budcache.search` with its ledger, and the ladder into the project."""

    def run(pipe: Any, job: Job, watch: Watch, clock: Clock) -> None:
        options = job.options
        minutes = options["minutes"]
        limits = minutes and Worked(seconds=max(0.0, 60 * minutes - job.seconds), clock=clock)
        ladder = search(
            pipe,
            steps=options["steps"],
            budgets=options["budgets"],
            prompts=options["prompts"],
            call={**studio.call, **options.get("call", {})},
            batch=studio.batch,
            refine=options["refine"],
            limits=limits,
            ledger=studio.project.ledger(job.id),
            progress=False,
            watch=watch,
        )
        searched = ladder.searched
        if searched is not None and searched.stopped is not None:
            job.notes.append(f"stopped early at the {searched.stopped}")
        studio.project.keep(job.id, ladder)

    return run
