"""Writes what of the documentation comes from the docstrings.

- docs/api.md: every public name with its signature;
- the list of files in docs/architecture.md, each with the first line of its docstring.

python docs/make_api.py          writes both
python docs/make_api.py --check  ends with 1 if they are not up to date
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import budcache
from budcache import baselines, events, exports, strategies, testing
from budcache.elsewhere import Elsewhere

TARGET, ARCHITECTURE = (Path(__file__).with_name(name) for name in ("api.md", "architecture.md"))
SOURCE = Path(budcache.__file__).parent
BEGIN, END = "<!-- files: made by make_api.py -->", "<!-- end of files -->"
ROOMS: dict[str, tuple[Any, str]] = {
    "budcache": (budcache, "What `import budcache` gives."),
    "budcache.events": (events, "What long jobs tell their watchers."),
    "budcache.strategies": (strategies, "Ways to search."),
    "budcache.baselines": (baselines, "Other people's caching methods."),
    "budcache.exports": (exports, "Other runtimes."),
    "budcache.testing": (testing, "Contract tests for strategies and baselines of your own."),
}


def main() -> None:
    old = ARCHITECTURE.read_text(encoding="utf-8")
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = {TARGET: page(), ARCHITECTURE: f"{before}{BEGIN}\n{files()}\n{END}{after}"}
    if "--check" in sys.argv:
        stale = [path.name for path, text in new.items() if not path.exists() or path.read_text("utf-8") != text]
        sys.exit(f"not up to date: {', '.join(stale)}. Run `make docs`." if stale else 0)
    for path, text in new.items():
        path.write_text(text, encoding="utf-8")


def files() -> str:
    """Every file of the package with what it is for, room by room."""
    lines, room = ["```"], None
    for path in sorted(SOURCE.rglob("*.py"), key=lambda path: (len(path.relative_to(SOURCE).parts) > 1, path)):
        parts = path.relative_to(SOURCE).parts
        about = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0].rstrip(".")
        if parts[:-1] != room:
            room = parts[:-1]
            lead = about if path.name == "__init__.py" and room else ""
            lines += [""] * bool(room) + [f"{'/'.join(('budcache', *room))}/".ljust(26) + lead]
        if path.name != "__init__.py":
            lines.append(f"  {path.name}".ljust(26) + about)
    return "\n".join(line.rstrip() for line in [*lines, "```"])


def page() -> str:
    """The whole reference."""
    parts = ["# API reference\n\nMade from the docstrings by `make docs`; do not edit it by hand.\n"]
    for name, (module, lead) in ROOMS.items():
        parts.append(f"## {name}\n\n{lead}\n")
        parts += [entry(public, getattr(module, public)) for public in sorted(module.__all__, key=str.lower)]
    return "\n".join(parts).rstrip() + "\n"


def entry(name: str, value: Any) -> str:
    """One public name."""
    if inspect.isclass(value):
        methods = [
            f"- `{attribute}{signature(member)}`: {first_line(member)}"
            for attribute, member in _members(value)
            if not attribute.startswith("_") and first_line(member)
        ]
        methods = [*_fields(value), *methods]
        return f"### {name}\n\n{prose(value)}\n" + ("\n" + "\n".join(methods) + "\n" if methods else "")
    if inspect.isroutine(value):
        return f"### {name}\n\n```python\n{name}{signature(value, wide=True)}\n```\n\n{prose(value)}\n"
    return f"### {name}\n\nA value: {kind(value)}.\n"


def _members(value: Any) -> list[tuple[str, Any]]:
    """What a class has; a method that is defined elsewhere as it stands there."""
    return [
        (name, each.__get__(value, value) if isinstance(each, Elsewhere) else each)
        for name, each in vars(value).items()
    ]


def _fields(value: Any) -> list[str]:
    """The fields of a value class whose docstring does not list them."""
    names = getattr(value, "model_fields", None) or getattr(value, "__dataclass_fields__", {})
    if re.search(r"^(Args|Attributes):", inspect.getdoc(value) or "", re.M):
        return []
    return [f"- `{name}`: {value.__annotations__[name]}" for name in names if name in value.__annotations__]


def kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"names and what they stand for: {', '.join(f'`{key}`' for key in value)}"
    if not hasattr(value, "__args__"):
        return f"`{type(value).__name__}`"
    names = [getattr(each, "__name__", str(each)) for each in value.__args__]
    return f"one of {', '.join(f'`{name}`' for name in names)}"


def signature(value: Any, wide: bool = False) -> str:
    """How it is called; a property has no brackets."""
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    if not callable(function):
        return ""
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return "(...)"
    parts, keywords = [], False
    for name, parameter in found.parameters.items():
        if name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keywords:
            parts, keywords = [*parts, "*"], True
        parts.append(_parameter(name, parameter))
    result = "" if found.return_annotation is found.empty else f" -> {_annotation(found.return_annotation)}"
    if not wide or len(", ".join(parts)) < 90:
        return f"({', '.join(parts)}){result}"
    return "(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"


def _parameter(name: str, parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
    shown = "..." if callable(parameter.default) else repr(parameter.default)  # a function's name has its address in it
    default = "" if parameter.default is parameter.empty else f" = {shown}"
    return f"{stars}{name}{typed}{default if typed or not default else default.replace(' ', '')}"


def _annotation(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return text.strip("\"'")


def prose(value: Any) -> str:
    """A docstring as Markdown: arguments become a list."""
    text = inspect.getdoc(value) or ""
    lines, listed = [], False
    for line in text.split("\n"):
        if re.fullmatch(r"(Args|Attributes|Returns):", line):
            lines.append(f"**{line[:-1]}**\n")
            listed = line != "Returns:"
        elif listed and (found := re.match(r"    (\S[^:]*): (.*)", line)):
            lines.append(f"- `{found[1]}`: {found[2]}")
        elif listed and line.startswith("        "):
            lines.append(f"  {line.strip()}")
        else:
            listed = listed and not line.strip()
            lines.append(line.removeprefix("    ") if not line.startswith("     ") else line)
    return "\n".join(lines).strip()


def first_line(value: Any) -> str:
    """What a member of a class says of itself; a default value, or what a library put there, says nothing."""
    ours = inspect.isroutine(value) or isinstance(
        value, property | functools.cached_property | classmethod | staticmethod
    )
    made = getattr(getattr(value, "__func__", value), "__module__", None) or "budcache"
    return (inspect.getdoc(value) or "").split("\n")[0] if ours and made.startswith("budcache") else ""


if __name__ == "__main__":
    main()
