"""Policies as notebooks show them: a table with mask strips and figures."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from budcache.policy import Policy

__all__ = ["table"]

_BOX = "display:inline-block;width:7px;height:14px;margin-right:1px;border-radius:1px;"
_COMPUTED, _REUSED = _BOX + "background:#2f6fed", _BOX + "background:#8a94a844"


def table(policies: Sequence[Policy]) -> str:
    """A row for each policy: calls, which steps are computed, what is reused, and the held-out quality."""
    rows = "".join(_row(policy) for policy in policies)
    names = ("calls", "fewer", "steps", "reuse", "PSNR to the full run")
    head = "".join(f'<th style="text-align:left">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(policy: Policy) -> str:
    strip = "".join(f'<span style="{_COMPUTED if bit else _REUSED}"></span>' for bit in policy.mask)
    label = escape(f"computes steps {', '.join(map(str, policy.mask.computed))} of {policy.steps}")
    quality = (policy.quality.text if policy.quality is not None else None) or "not measured"
    reuse = policy.reuse_text + ("" if policy.sigmas is None else ", own sigmas")
    cells = (
        str(policy.budget),
        f"{policy.steps / policy.budget:.1f}x",
        f'<span role="img" aria-label="{label}" style="white-space:nowrap">{strip}</span>',
        escape(reuse),
        escape(quality),
    )
    return f"<tr>{''.join(f'<td style=text-align:left>{cell}</td>' for cell in cells)}</tr>"
