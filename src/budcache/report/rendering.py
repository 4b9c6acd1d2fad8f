"""Filling in the templates of pages: whatever people wrote is escaped."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Script", "environment", "render", "script"]

TEMPLATES = Path(__file__).parent / "templates"


@cache
def environment(*folders: Path) -> Environment:
    """Templates of these folders, and of the report's, which they can build on."""
    return Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,  # a name that is missing is a mistake, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(name: str, **values: Any) -> str:
    """A template, filled in."""
    return environment().get_template(name).render(**values)


class Script(NamedTuple):
    """A page's script, and its hash: a browser that is told the hash runs this script and no other."""

    text: Markup
    hash: str


@cache
def script(*names: str) -> Script:
    """Files of the templates' folder as one script."""
    text = "\n" + "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names)
    return Script(Markup(text), f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}")
