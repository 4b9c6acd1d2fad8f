"""Policies as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy, Quality
from budcache.provenance import RangedSetting
from budcache.report import strips
from budcache.wording import several

__all__ = ["cautions", "describe", "strip"]

COMPUTED, REUSED = "█", "·"
FEW = 4  # samples, on which a mean does not say much
LESS = "4 to 6"  # as measured on the embedded models with four prompts
SPARE = ("loss", "fewer", "gain")  # columns that a narrow terminal does without, the first of them first
WIDE = 1000  # columns: more than any table has
MORE = " (from 8 prompts on, some are kept out to measure by)"


def strip(mask: Mask) -> str:
    """A mask as a strip: a block for each computed step, a dot for each reused one."""
    return "".join(COMPUTED if share else REUSED for share in strips.strip([mask]).shares)


def describe(found: Policy | Ladder) -> RenderableType:
    """What a policy or ladder file holds: mask strips, numbers, origin and quality."""
    rungs = found.rungs if isinstance(found, Ladder) else (found,)
    first = rungs[0]
    title = (
        f"ladder of {several(len(rungs), 'rung')}, {first.steps} steps"
        if isinstance(found, Ladder)
        else f"policy: computes {first.budget} of {first.steps} steps, {first.steps / first.budget:.2f} times fewer"
    )
    return Group(Text(title, style="bold"), _Rungs(rungs), *_refinements(rungs), *_origin(first.origin))


@dataclass(frozen=True)
class _Rungs:
    """One row a rung, and what the columns mean.

    A narrow terminal does without the columns that are missed least, so that masks stay in one piece.
    """

    rungs: tuple[Policy, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for left_out in range(len(SPARE) + 1):
            table = _table(self.rungs, SPARE[:left_out])
            if Measurement.get(console, options.update(max_width=WIDE), table).maximum <= options.max_width:
                break
        yield table
        yield from _legend(self.rungs, losses="loss" not in SPARE[:left_out])


def _table(rungs: tuple[Policy, ...], left_out: tuple[str, ...]) -> Table:
    """Columns that would be empty are left out, and strips are folded where there is no room at all."""
    qualities = [rung.quality or Quality() for rung in rungs]
    columns: dict[str, list[str]] = {
        "calls": [str(rung.budget) for rung in rungs],
        "fewer": [f"{rung.steps / rung.budget:.2f}x" for rung in rungs],
        "steps": [strip(rung.mask) for rung in rungs],
        "reuse": [rung.reuse_text for rung in rungs],
        "sigmas": ["-" if rung.sigmas is None else "own" for rung in rungs],
        "loss": [_number(quality.calibration_loss, ".2e") for quality in qualities],
        "PSNR": [quality.short or "-" for quality in qualities],
        "gain": [_gain(rung) for rung in rungs],
    }
    table = Table(box=None, pad_edge=False, header_style="dim")
    kept = {name: cells for name, cells in columns.items() if set(cells) != {"-"} and name not in left_out}
    for name in kept:
        strips = name == "steps"
        table.add_column(
            name, no_wrap=not strips, overflow="fold", justify="left" if strips or name == "reuse" else "right"
        )
    for row in zip(*kept.values(), strict=True):
        table.add_row(*row)
    return table


def _gain(rung: Policy) -> str:
    """Over plain reuse at the same steps, where that was measured; in files from before, what refinements said."""
    quality = rung.quality or Quality()
    if quality.psnr is not None and quality.psnr_plain is not None:
        return _signed(quality.psnr - quality.psnr_plain)
    gains = [line.gain for line in rung.refined if line.gain is not None]
    return _signed(sum(gains)) if gains else "-"


def _signed(gain: float) -> str:
    return f"{round(gain, 1) + 0.0:+.1f}"  # never -0.0


def _legend(rungs: tuple[Policy, ...], losses: bool) -> list[RenderableType]:
    """What the columns mean."""
    first = rungs[0]
    lines = [f"{COMPUTED} computes, {REUSED} reuses", *_marks(rungs)]
    measured = [rung.quality for rung in rungs if rung.quality is not None and rung.quality.psnr is not None]
    if measured:
        steps = (first.origin and first.origin.teacher_steps) or first.steps
        counts = sorted({quality.samples for quality in measured if quality.samples is not None})
        on = (
            several(counts[0] if counts else None, "sample")
            if len(counts) < 2
            else f"{counts[0]} to {counts[-1]} samples"
        )
        fitted = any(quality.used_to_fit for quality in measured)
        plain = all(quality.psnr_error is None or quality.used_to_fit for quality in measured)
        what = "mean" if plain else "mean and standard error"
        others = "; loss on the others" if losses else ""
        where = "that the search was made on" if fitted else f"not searched on{others}"
        lines.append(f"PSNR in decibels to the run of {steps} steps: {what} on {on} {where}")
        if any(quality.psnr_plain is not None for quality in measured):
            lines.append("gain over repeating outputs at the same steps")
        marked = "< " if fitted else ""
        lines += [f"{marked * (not place)}{line}" for place, line in enumerate(cautions(measured))]
    return [Text(line, style="dim") for line in lines]


def cautions(measured: Sequence[Quality], samples: str = "these samples") -> list[str]:
    """What to think of qualities that were measured on `samples` which made or chose the policies, or on few."""
    counts, lines = [quality.samples for quality in measured if quality.samples is not None], []
    fitted, few = any(quality.used_to_fit for quality in measured), bool(counts) and min(counts) < FEW
    if fitted:
        lines.append(f"the policies were made on {samples}; on new prompts expect {LESS} dB less{MORE}")
    elif any(quality.used_to_choose for quality in measured):
        if few:  # in the demo 5 to 11 dB were lost
            few_tell = "and few samples tell little: new prompts may be 10 dB or more below that"
            return [f"the policies were also chosen by {samples}, {few_tell}"]
        lines.append(f"the policies were also chosen by {samples}, so on new prompts expect a little less")
    if few and not fitted:
        lines.append("few samples: prompts differ by several dB, and others may be that much harder or easier")
    return lines


def _marks(rungs: tuple[Policy, ...]) -> list[str]:
    """What the marks behind a blend mean, if there are some."""
    texts = [rung.reuse_text for rung in rungs if rung.is_blended]
    if not texts:
        return []
    meanings = {
        "+": "+ and the initial noise, without a solver",
        " g": "g guidance apart",
        " f": "f weights that look at the sample",
    }
    found = [meaning for mark, meaning in meanings.items() if any(mark in text for text in texts)]
    return ["; ".join(["blend N mixes up to N outputs", *found])]


def _refinements(rungs: tuple[Policy, ...]) -> list[RenderableType]:
    """A line for all that each policy went through after its mask was found."""
    lines = [(rung.budget, line) for rung in rungs for line in rung.refined]
    if not lines:
        return []
    if all(line.gain is None and line.calls == 0 for _, line in lines):
        hows = ", ".join(dict.fromkeys(line.how for _, line in lines))
        some = f"{', '.join(str(budget) for budget, _ in lines)} calls: " if len(lines) < len(rungs) else ""
        return [Text(f"{some}weights {hows}, not yet tried on the model", style="dim")]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("calls", justify="right")
    table.add_column("refined by", no_wrap=True)
    fitted = any(rung.quality is not None and rung.quality.used_to_fit for rung in rungs)
    for name in ("prompts", "sample-calls", "gain by it, same prompts" if fitted else "gain by it, other prompts"):
        table.add_column(name, justify="right")
    before = None
    for budget, line in lines:
        gain = "not measured" if line.gain is None else f"{_signed(line.gain)} dB"
        table.add_row(
            "" if budget == before else str(budget), line.how, _number(line.prompts, ""), _number(line.calls, ","), gain
        )
        before = budget
    return [Text(""), table]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _spent(calls: int) -> str:
    return f"in {calls} sample-calls" if calls else "without a model call"


def _setting(origin: Origin, name: RangedSetting) -> str | None:
    """A setting, or the range of it where samples differed."""
    if name in origin.ranges:
        low, high = origin.ranges[name]
        return f"{low:g} to {high:g}"
    value = getattr(origin, name)
    return None if value is None else str(value)


def _size(origin: Origin) -> str:
    return " x ".join(filter(None, (_setting(origin, name) for name in ("width", "height"))))


def _length(origin: Origin) -> str:
    frames = _setting(origin, "frames")
    return "" if frames is None else "1 frame" if frames == "1" else f"{frames} frames"


def _origin(origin: Origin | None) -> list[RenderableType]:
    if origin is None:
        return [Text("origin unknown", style="dim")]
    facts = {
        "model": origin.model,
        "pipeline": " / ".join(filter(None, (origin.pipeline, origin.denoiser, origin.scheduler))) or None,
        "adapters": ", ".join(origin.adapters) or None,
        "size": ", ".join(filter(None, (_size(origin), _length(origin)))) or None,
        "guidance": _setting(origin, "guidance"),
        "true guidance": _setting(origin, "true_guidance"),
        "experts": None if origin.switch is None else f"two; the second takes over at step {origin.switch}",
        "prompts": origin.prompts,
        "search": " ".join(
            filter(
                None,
                (
                    origin.strategy,
                    None if origin.calls is None else _spent(origin.calls),
                    None if origin.seed is None else f"with seed {origin.seed}",
                ),
            )
        )
        or None,
        "made with": ", ".join(f"{name} {version}" for name, version in origin.versions.items()) or None,
    }
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in facts.items():
        if value is not None:
            table.add_row(name, Text(str(value)))
    return [Text(""), table] if table.row_count else []
