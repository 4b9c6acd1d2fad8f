"""The studio's own markup: templates that build on the report's, so that charts, masks and pictures look the same."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from budcache.report.rendering import environment

__all__ = ["Seen", "alert", "head", "render"]

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, /, **values: Any) -> str:
    """A template, filled in; whatever people wrote is escaped."""
    return environment(TEMPLATES).get_template(template).render(**values)


def alert(text: str) -> str:
    """A refusal, to stand at its field; nothing if there is nothing to say."""
    return render("alert.html.jinja", text=text)


def head() -> str:
    """What the page has in its head: our style sheet and our script, from here and not from the network."""
    return render("head.html.jinja")


class Seen:
    """What a page shows already, so that only what is new is sent to it: a page is asked again every second."""

    def __init__(self, shown: dict[str, str] | None = None) -> None:
        self.shown = dict(shown or {})

    def new(self, name: str, html: str) -> bool:
        """Whether a part of the page differs from what was shown last."""
        mark = hashlib.sha256(html.encode()).hexdigest()
        before, self.shown[name] = self.shown.get(name), mark
        return before != mark
