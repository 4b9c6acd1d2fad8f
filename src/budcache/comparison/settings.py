"""Chosen settings of other methods, as a file: a comparison goes on without choosing again, or starts from them."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.aggregate import Care
from budcache.errors import FileError, PolicyError, SearchError
from budcache.provenance import Origin
from budcache.storage.files import read_json, write_json
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.baselines.tuning import Choice

__all__ = ["Settings", "described"]

VERSION = 2  # in version 1 L2P was chosen on a quarter of the samples
DIGITS = 8  # of numbers in the file
# What the best settings depend on, beside the model's name; a file without one of these does not tell.
CONDITIONS = (
    *("weights", "adapters", "scheduler", "scheduler_settings"),
    *("height", "width", "frames", "guidance", "true_guidance"),
)


class Settings:
    """Choices by method and budget, with where they came from; a small JSON file.

    Args:
        origin: the model, the steps, the prompts and how many of them, the seed, the care.
    """

    def __init__(self, origin: dict[str, Any]) -> None:
        self.origin = origin
        self._kept: dict[str, dict[int, dict[str, Any]]] = {}

    def __contains__(self, method: str) -> bool:
        return method in self._kept

    def find(self, method: str, budget: int) -> Choice[Any] | None:
        """What was chosen for a method at a budget."""
        from budcache.baselines import TUNABLE
        from budcache.baselines.tuning import Choice

        kept = self._kept.get(method, {}).get(budget)
        if kept is None:
            return None
        made = [(TUNABLE[method](**_tuples(facts)), float(calls)) for facts, calls in kept["settings"]]
        return Choice(tuple(made), kept["samples"], kept["sample_calls"])

    def keep(self, method: str, budget: int, choice: Choice[Any]) -> None:
        """Add a choice."""
        settings = [[_plain(asdict(setting)), calls] for setting, calls in choice.settings]
        facts = {"settings": settings, "samples": choice.samples, "sample_calls": choice.sample_calls}
        self._kept.setdefault(method, {})[budget] = facts

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all choices; what all settings of a method share stands there once."""
        methods: dict[str, Any] = {}
        for method, budgets in self._kept.items():
            every = [facts for kept in budgets.values() for facts, _ in kept["settings"]]
            common = {name: value for name, value in every[0].items() if all(f[name] == value for f in every)}
            chosen = {
                str(budget): {
                    **kept,
                    "settings": [
                        [{name: value for name, value in facts.items() if name not in common}, round(calls, 4)]
                        for facts, calls in kept["settings"]
                    ],
                }
                for budget, kept in sorted(budgets.items())
            }
            methods[method] = {"common": common, "budgets": chosen}
        return write_json(path, {"kind": "settings", "version": VERSION, "origin": self.origin, "methods": methods})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Settings:
        """Read a file of choices."""
        if not Path(path).is_file():
            raise FileError(f"there is no file {path}. Give the settings.json of a comparison, or leave it out.")
        data: Any = read_json(path)
        try:
            if data["kind"] != "settings" or data["version"] not in range(1, VERSION + 1):
                raise ValueError
            found = cls(dict(data["origin"]))
            Origin.model_validate({name: value for name, value in found.origin.items() if name in Origin.model_fields})
            for method, facts in data["methods"].items():
                for budget, kept in facts["budgets"].items():
                    settings = [[{**facts["common"], **own}, calls] for own, calls in kept["settings"]]
                    found._kept.setdefault(method, {})[int(budget)] = {**kept, "settings": settings}
                for budget in found._kept.get(method, {}):
                    found.find(method, budget)  # what does not fit this version of the method is said now
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, PolicyError):
            raise PolicyError(
                f"{path} does not hold settings that this budcache can use. Give the settings.json of a comparison, "
                "or leave it out."
            ) from None
        if data["version"] < VERSION:
            raise PolicyError(
                f"{path} holds settings that an earlier budcache chose by other rules. Leave it out, and they "
                "are chosen again."
            )
        return found

    def difference(self, other: Settings) -> str | None:
        """In what their origins differ, as a clause; None if in nothing that matters."""
        for name in sorted({*self.origin, *other.origin} - {"versions"}):
            theirs, here = self.origin.get(name), other.origin.get(name)
            if theirs != here and name == "prompts_hash":
                return "it was made on other prompts"
            if theirs != here:
                return f"{name} is {quote(theirs)} in one and {quote(here)} in the other"
        return None

    def check(self, steps: int, origin: Origin, care: Care) -> None:
        """Refuse settings of another model or number of steps, at another size or guidance, or chosen by other errors.

        Args:
            steps: K of the comparison.
            origin: what it runs on.
            care: what settings are chosen by there.
        """
        again = "Leave them out, and they are chosen here."
        for name, here in (("steps", steps), ("model", origin.model), ("care", care)):
            theirs = self.origin.get(name)
            if theirs is not None and here is not None and theirs != here:
                raise SearchError(
                    f"the settings were chosen with {name} {theirs}, and this comparison has {here}. {again}"
                )
        known = Origin.model_validate({name: self.origin[name] for name in CONDITIONS if name in self.origin})
        # Of these, none is left out of the file, too.
        blank = {"adapters": True, "scheduler_settings": "scheduler" in self.origin}
        told = [name for name in CONDITIONS if name in self.origin or blank.get(name)]
        if differs := known.difference(origin, told):
            raise SearchError(f"the settings were chosen at other conditions: {differs}. {again}")


def described(method: Any) -> str:
    """A setting as people read it: the knob, then whatever else can be set."""
    numbers = {each.name: getattr(method, each.name) for each in fields(method) if each.name != "steps" and each.repr}
    names = [method.knob.name, *(name for name in numbers if name != method.knob.name)]
    plain = [name for name in names if isinstance(numbers[name], bool | int | float | str)]
    return ", ".join(f"{name} {_written(numbers[name])}" for name in plain)


def _written(value: float | str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:.4g}"


def _plain(value: Any) -> Any:
    """As JSON has it, which knows no infinity."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)
    return value


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return float(value) if value in ("inf", "-inf", "nan") else value
