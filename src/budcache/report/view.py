"""A comparison in the words and numbers of its page; the templates put them into place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from budcache.comparison.entry import Entry, Measure
from budcache.comparison.result import Comparison
from budcache.comparison.table import Cell, cells, equivalents, heading
from budcache.comparison.verdict import best_other, lead, main_budget
from budcache.models import EMBEDDED
from budcache.report.promises import speed as faster
from budcache.storage.media import FPS, spoken
from budcache.wording import several

__all__ = [
    "Row",
    "code",
    "columns",
    "facts",
    "hero",
    "ladder_file",
    "left_out",
    "reading",
    "rows",
    "settings",
    "small_model",
    "unbroken",
]

UNDECIDED = "undecided"


def hero(comparison: Comparison) -> tuple[str, str]:
    """The one number to remember, and what it counts."""
    budget = main_budget(comparison)
    entry = comparison.entry(comparison.ours, budget) if comparison.ours is not None else None
    if entry is None:
        count = len(comparison.methods)
        return str(count), f"method{'' if count == 1 else 's'} at equal cost"
    return f"{comparison.full.mean_calls / entry.mean_calls:.2g}×", "fewer model calls"


def small_model(comparison: Comparison) -> str:
    """What an embedded model is, so that nobody takes its small pictures for a large model's; empty for others."""
    name = comparison.origin.model
    return f"{name} is {EMBEDDED[name].about}." if name in EMBEDDED else ""


def unbroken(sentence: str) -> str:
    """A sentence whose figures stay with their units and errors where lines are broken."""
    return sentence.replace(" ± ", "\u00a0±\u00a0").replace(" dB", "\u00a0dB")


class Row(NamedTuple):
    """A row of the large table: its cells, and what stands small below each of them."""

    entry: Entry
    cells: list[tuple[Cell, str]]
    ours: bool


def columns(comparison: Comparison) -> list[str]:
    """The heads of the large table: quality first, which a phone has room for, then what it costs."""
    ahead = [_lead_column(comparison)] if _compared(comparison) else []
    return ["calls", *map(heading, comparison.measures), *ahead, "speed-up", "loop (s)", "call-equivalents"]


def rows(comparison: Comparison, entries: Sequence[Entry]) -> list[Row]:
    """The paper's Table 1 of this comparison: tail and worst below each mean, and how far ours is ahead."""
    found = []
    for entry in entries:
        speedup, speed = faster(entry)
        calls, loop, _, *means = cells(comparison, entry)
        row = [(calls, "")]
        for mean, measure in zip(means, comparison.measures, strict=True):
            summed = entry.summed(measure)
            worst = "" if summed is None else f"{measure.written(summed.tail)} / {measure.written(summed.worst)}"
            row.append((mean, worst))
        if by := _compared(comparison):
            row.append(_lead(comparison, entry, by))
        row += [
            (Cell(speedup or "-"), speed),
            (loop, ""),
            (equivalents(entry), ""),
        ]
        found.append(Row(entry, row, entry.method == comparison.ours))
    return found


def _compared(comparison: Comparison) -> Measure | None:
    """The metric that leads are told in; None if there is nobody to be ahead."""
    return comparison.measures[0] if comparison.ours is not None and comparison.measures else None


def _lead_column(comparison: Comparison) -> str:
    assert comparison.ours is not None
    return f"{comparison.methods[comparison.ours]} ahead by, {comparison.measures[0].title}"


def _lead(comparison: Comparison, entry: Entry, measure: Measure) -> tuple[Cell, str]:
    """How far ours is ahead of an entry at the same budget, sample by sample, and whether that is decided."""
    ours = comparison.entry(comparison.ours or "", entry.budget)
    apart = lead(ours, entry, measure) if ours is not None and ours != entry else None
    if apart is None:
        return Cell(""), ""
    error = "" if apart.error is None else measure.written(apart.error)
    return Cell(f"{apart.mean:+.{measure.digits}f}", 0, error), "" if apart.decided else UNDECIDED


def reading(comparison: Comparison, measure: Measure) -> str:
    """How to read a metric's chart: which way is better, and whose errors are shaded at all times."""
    way = "Higher" if measure.higher else "Lower"
    said = f"{way} is {'closer to the full run' if measure.reference else 'better'}."
    rival = best_other(comparison, main_budget(comparison), measure)
    both = [comparison.methods.get(comparison.ours or "", ""), rival.title if rival is not None else ""]
    shaded = " and ".join(filter(None, both)) if len(comparison.budgets) > 1 else ""
    return f"{said} Shaded: one standard error of {shaded}." if shaded else said


def settings(comparison: Comparison) -> list[tuple[str, str]]:
    """What each method was tuned to; of two settings both."""
    both = [(entry, [each.knob for each in entry.counting if each.knob]) for entry in comparison.entries]
    return [(f"{entry.title}, {entry.budget} calls", " | ".join(knobs)) for entry, knobs in both if knobs]


def left_out(comparison: Comparison) -> list[tuple[str, str]]:
    """Methods that could not take part, and why."""
    return [
        (
            out.title,
            ("" if out.budgets == comparison.budgets else f" at {', '.join(map(str, out.budgets))} calls")
            + f": {out.reason}",
        )
        for out in comparison.left_out
    ]


def facts(comparison: Comparison) -> dict[str, str]:
    """How it was measured."""
    origin, count = comparison.origin, len(comparison.prompts)
    noise = "noise of their own" if comparison.seed is None else _seeds(comparison.seed, count)
    timed = max((each.speed.pairs for each in comparison.entries if each.method in comparison.methods), default=0)
    found = {
        "model": origin.model,
        "pipeline": " / ".join(filter(None, (origin.pipeline, origin.denoiser, origin.scheduler))),
        "full run": several(comparison.steps, "step"),
        "size": ", ".join(filter(None, (_size(comparison), _length(comparison)))),
        "guidance": origin.guidance,
        "experts": None if origin.switch is None else f"two; the second takes over at step {origin.switch}",
        "measured on": f"{several(count, 'sample')}, {noise}, one at a time",
        "calibrated on": _learned_on(comparison),
        "care": "for the worst samples: large errors count more" if comparison.care == "worst" else None,
        "uncertainty": "± is the standard error of the mean; a lead within two standard errors of the samples' "
        "differences (with fewer than 20 samples: within as many as Student's t asks for) is undecided",
        "latency": f"of the denoising loop, text encoders and decoder apart; the speed-up is the median of up to "
        f"{several(timed, 'pair')} of a full run and a run of the method, with its 95 % interval below (≤: pairs told "
        "a little more than the calls allow); seconds are the full runs' median divided by it"
        if timed
        else "not measured",
        "ran on": f"{comparison.device}, {several(comparison.threads, 'thread')}, {comparison.dtype}",
        "made with": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
    }
    return {name: str(value) for name, value in found.items() if value}


def _size(comparison: Comparison) -> str:
    return " x ".join(str(n) for n in (comparison.origin.width, comparison.origin.height) if n is not None)


def _length(comparison: Comparison) -> str:
    frames = comparison.origin.frames
    return "" if frames is None else spoken(frames, comparison.fps or FPS)


def _seeds(first: int, count: int) -> str:
    return f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"


def _learned_on(comparison: Comparison) -> str:
    """How many prompts each was made on; who was made on equally many stands together, ours first."""
    found: dict[int, dict[str, None]] = {}
    for entry in sorted(comparison.entries, key=lambda entry: entry.method != comparison.ours):
        if entry.learned_on is not None:
            found.setdefault(entry.learned_on, {})[entry.title] = None
    return "; ".join(f"{several(count, 'prompt')}: {', '.join(names)}" for count, names in found.items())


def ladder_file(comparison: Comparison, folder: Path) -> str | None:
    """The file of what is put forward: brought by the user, or left in the folder."""
    if comparison.ours is None:
        return None
    if comparison.ours.startswith("policy:"):  # as the command line calls files
        return comparison.ours.removeprefix("policy:")
    name = f"{comparison.ours}.ladder.json"
    return name if (folder / name).exists() else None


def code(comparison: Comparison, file: str | None) -> str:
    """How to use what is put forward."""
    if file is None:
        return ""
    budget = main_budget(comparison)
    made, field = ("image", "images") if comparison.origin.frames is None else ("video", "frames")
    model, kind = comparison.origin.model, comparison.origin.pipeline or "pipeline"
    pipe = f"pipe = budcache.load({model!r})" if model in EMBEDDED else f"pipe = ...  # your {kind}, loaded as usual"
    return (
        f"# pip install budcache\nimport budcache\n\n{pipe}\nwith budcache.applied(pipe, {file!r}, budget={budget}):\n"
        f"    {made} = pipe({comparison.prompts[0]!r}).{field}[0]  # {budget} model calls, whatever the prompt"
    )
