"""A ladder as one SVG file: the masks as strips, and the quality over model calls with its standard error.

It stands alone, as a card shows it: no style sheet, no script, no font, and colours for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from budcache.policy import Ladder, Policy

__all__ = ["draw"]

WIDTH, LEFT, RIGHT, ROW, TOP = 760, 74, 640, 22, 34
CURVE = 220  # pixels, from the curve's top to its base
MOST = 24  # strips; a longer ladder is shown with some rungs left out

_STYLE = """
text{font:13px system-ui,sans-serif;fill:#39404d}.dim{fill:#6b7484}.end{text-anchor:end}.middle{text-anchor:middle}
.on{fill:#2f6fed}.off{fill:#8a94a8;fill-opacity:.25}.line{fill:none;stroke:#2f6fed;stroke-width:2.5}
.band{fill:#2f6fed;fill-opacity:.16}.dot{fill:#2f6fed}.grid{stroke:#8a94a8;stroke-opacity:.35}
@media(prefers-color-scheme:dark){text{fill:#dfe4ee}.dim{fill:#a4adbd}}
"""


def draw(ladder: Ladder) -> str:
    """The picture, as the text of an SVG file."""
    shown = _shown(ladder.rungs)
    measured = [rung for rung in ladder if rung.quality is not None and rung.quality.psnr is not None]
    below = TOP + ROW * len(shown) + 30
    parts = _strips(shown)
    height = below
    if len(measured) > 1:
        parts += _curve(measured, below + 14)
        height = below + CURVE + 56
    about = f"Masks of {len(ladder)} budgets of {ladder.steps} steps, and their quality over model calls"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{about}">\n'
        f"<style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _shown(rungs: Sequence[Policy]) -> list[Policy]:
    """All rungs, or as many as fit, the first and the last among them."""
    if len(rungs) <= MOST:
        return list(rungs)
    return [rungs[round(place * (len(rungs) - 1) / (MOST - 1))] for place in range(MOST)]


def _strips(rungs: Sequence[Policy]) -> list[str]:
    steps = rungs[0].steps
    pitch = (RIGHT - LEFT) / steps
    room = min(2.0, pitch * 0.2)
    parts = [
        f'<text class="dim end" x="{LEFT - 10}" y="20">calls</text>',
        f'<text class="dim" x="{LEFT}" y="20">steps from noise to picture: blue computes, grey reuses</text>',
        f'<text class="dim end" x="{WIDTH - 8}" y="20">PSNR, dB</text>',
    ]
    for place, rung in enumerate(rungs):
        y = TOP + ROW * place
        parts.append(f'<text class="end" x="{LEFT - 10}" y="{y + 13}">{rung.budget}</text>')
        cells = {True: "", False: ""}
        for step, bit in enumerate(rung.mask.bits):
            cells[bit] += f"M{LEFT + pitch * step:.1f} {y}h{pitch - room:.1f}v{ROW - 6}h{room - pitch:.1f}z"
        parts += [f'<path class="{"on" if bit else "off"}" d="{path}"/>' for bit, path in cells.items() if path]
        parts.append(f'<text class="end" x="{WIDTH - 8}" y="{y + 13}">{_figure(rung)}</text>')
    return parts


def _figure(rung: Policy) -> str:
    quality = rung.quality
    if quality is None or quality.psnr is None:
        return "-"
    return f"{quality.psnr:.1f}" + ("" if quality.psnr_error is None else f" ± {quality.psnr_error:.1f}")


def _curve(rungs: Sequence[Policy], top: float) -> list[str]:
    """PSNR over calls: a line through the means, and a band of their standard errors."""
    found = [(rung.budget, rung.quality.psnr, rung.quality.psnr_error or 0.0) for rung in rungs if rung.quality]
    points = [(calls, psnr, error) for calls, psnr, error in found if psnr is not None]
    low, high = min(psnr - error for _, psnr, error in points), max(psnr + error for _, psnr, error in points)
    slack = (high - low) * 0.08 or 1.0
    low, high = low - slack, high + slack
    first, last, base = points[0][0], points[-1][0], top + CURVE

    def x(calls: float) -> float:
        return round(LEFT + 12 + (calls - first) / (last - first) * (RIGHT - LEFT - 24), 1)

    def y(value: float) -> float:
        return round(base - (value - low) / (high - low) * CURVE, 1)

    parts = [f'<text class="dim" x="{LEFT}" y="{top - 8}">PSNR to the full run in dB, with its standard error</text>']
    for tick in range(5):
        value = low + (high - low) * tick / 4
        parts.append(f'<path class="grid" d="M{LEFT} {y(value)}H{RIGHT}"/>')
        parts.append(f'<text class="dim end" x="{LEFT - 10}" y="{y(value) + 4}">{value:.1f}</text>')
    there = [f"{x(calls)} {y(psnr + error)}" for calls, psnr, error in points]
    back = [f"{x(calls)} {y(psnr - error)}" for calls, psnr, error in reversed(points)]
    parts.append(f'<path class="band" d="M{"L".join(there + back)}Z"/>')
    parts.append(f'<path class="line" d="M{"L".join(f"{x(calls)} {y(psnr)}" for calls, psnr, _ in points)}"/>')
    free = -1.0
    for calls, psnr, _ in points:
        parts.append(f'<circle class="dot" cx="{x(calls)}" cy="{y(psnr)}" r="4"/>')
        if x(calls) > free:  # figures do not touch
            parts.append(f'<text class="dim middle" x="{x(calls)}" y="{base + 18}">{calls}</text>')
            free = x(calls) + 24
    parts.append(f'<text class="dim middle" x="{(LEFT + RIGHT) / 2}" y="{base + 36}">model calls per sample</text>')
    return parts
