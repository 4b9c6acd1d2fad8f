"""Policies as notebooks show them: a table with mask strips and figures."""

from __future__ import annotations

from collections.abc import Sequence

from budcache.policy import Policy
from budcache.report.rendering import render
from budcache.report.strips import strip

__all__ = ["table"]


def table(policies: Sequence[Policy]) -> str:
    """A row for each policy: calls, which steps are computed, what is reused, and the held-out quality."""
    return render("policies.html.jinja", rows=[(policy, strip([policy.mask])) for policy in policies])
