"""Policies as text for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy, Quality

__all__ = ["describe", "strip"]

COMPUTED, REUSED = "█", "·"


def strip(mask: Mask) -> str:
    """A mask as a strip: a block for each computed step, a dot for each reused one."""
    return "".join(COMPUTED if bit else REUSED for bit in mask)


def describe(found: Policy | Ladder) -> RenderableType:
    """What a policy or ladder file holds: mask strips, numbers, origin and quality."""
    rungs = found.rungs if isinstance(found, Ladder) else (found,)
    first = rungs[0]
    title = (
        f"ladder of {len(rungs)} policies, {first.steps} steps"
        if isinstance(found, Ladder)
        else f"policy: computes {first.budget} of {first.steps} steps, {first.steps / first.budget:.2f} times fewer"
    )
    return Group(Text(title, style="bold"), _table(rungs), *_origin(first.origin))


def _table(rungs: tuple[Policy, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("calls", justify="right")
    table.add_column("fewer", justify="right")
    table.add_column(f"steps ({COMPUTED} computes, {REUSED} reuses)", no_wrap=True)
    table.add_column("reuse")
    table.add_column("sigmas")
    table.add_column("PSNR", justify="right")
    table.add_column("SSIM", justify="right")
    table.add_column("samples", justify="right")
    for rung in rungs:
        quality = rung.quality or Quality()
        reuse = rung.reuse if rung.weights is None else f"blend of {max(map(len, rung.weights))}"
        table.add_row(
            str(rung.budget),
            f"{rung.steps / rung.budget:.2f}x",
            strip(rung.mask),
            reuse,
            "own" if rung.sigmas is not None else "-",
            _number(quality.psnr, ".1f"),
            _number(quality.ssim, ".3f"),
            _number(quality.samples, "d"),
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _origin(origin: Origin | None) -> list[RenderableType]:
    if origin is None:
        return [Text("origin unknown", style="dim")]
    facts = {
        "model": origin.model,
        "pipeline": " / ".join(filter(None, (origin.pipeline, origin.denoiser, origin.scheduler))) or None,
        "adapters": ", ".join(origin.adapters) or None,
        "size": " x ".join(str(n) for n in (origin.width, origin.height, origin.frames) if n is not None) or None,
        "guidance": origin.guidance,
        "prompts": origin.prompts,
        "search": " ".join(
            filter(
                None,
                (
                    origin.strategy,
                    None if origin.calls is None else f"in {origin.calls} model calls",
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
            table.add_row(name, str(value))
    return [Text(""), table] if table.row_count else []
