"""Who may import whom, read off the source text: nothing here is imported to be judged."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

import budcache

SOURCE = Path(budcache.__file__).parent
TENSORS, PIPELINES = {"torch", "numpy"}, {"diffusers", "transformers"}
COMMANDS = {"budcache.cli", "budcache.__main__"}


def ours(*names: str) -> set[str]:
    return {f"budcache.{name}" for name in names}


class Room(NamedTuple):
    """Modules, and what none of them knows of: neither by itself nor through others that it imports."""

    modules: set[str]
    unknown: set[str]
    but: frozenset[str] | set[str] = frozenset()  # modules in there to which it does not apply


STUDIO_VALUES = (
    *(
        "comparing",
        "drawing",
        "fields",
        "job",
        "looking",
        "panel",
        "project",
        "runner",
        "saying",
        "searching",
        "settings",
        "studio",
        "taking",
    ),
    "rendering",
)
JOBS = ours("jobs", "comparison", "report", "models", "cli")
ROOMS = {
    "values": Room(
        {
            *ours("errors", "events", "mask", "options", "plan", "policy", "wording", "notebook"),
            *ours("elsewhere", "provenance", "rows"),
            *ours("storage.files", "storage.schema", "storage.journal"),
            *ours("calibration.score", "aggregate", "strategies"),
        },
        TENSORS | PIPELINES | ours("numerics", "pipeline", "refine", "metrics", "baselines", "hub") | JOBS,
    ),
    "numerics": Room(ours("numerics"), PIPELINES | ours("pipeline", "calibration", "strategies", "refine") | JOBS),
    "samples": Room(ours("samples"), PIPELINES | ours("pipeline", "calibration", "strategies", "refine") | JOBS),
    "storage": Room(ours("storage"), {"torch"} | PIPELINES | ours("numerics", "pipeline", "calibration") | JOBS),
    "calibration": Room(ours("calibration"), {"diffusers"} | ours("pipeline", "strategies", "refine") | JOBS),
    "refine": Room(ours("refine"), PIPELINES | ours("pipeline", "strategies", "metrics", "baselines") | JOBS),
    "pipeline": Room(
        ours("pipeline"), ours("calibration", "strategies", "refine", "metrics", "baselines", "testing") | JOBS
    ),
    "metrics": Room(ours("metrics"), {"diffusers"} | ours("pipeline", "strategies", "refine", "baselines") | JOBS),
    "baselines": Room(ours("baselines"), ours("calibration", "strategies", "refine") | JOBS),
    "exports": Room(
        ours("exports"),
        ours("calibration", "strategies", "refine", "metrics", "baselines", "jobs", "comparison", "report"),
    ),
    "hub": Room(
        ours("hub"),
        ours("calibration", "strategies", "refine", "metrics", "baselines", "jobs", "comparison", "models", "cli"),
    ),
    "chosen": Room(ours("chosen"), TENSORS | PIPELINES | ours("numerics", "pipeline", "calibration") | JOBS),
    "jobs": Room(
        ours("jobs"),
        ours("baselines", "comparison", "report", "models"),
        but=ours("jobs.check", "jobs.promised", "jobs.compare"),
    ),
    # What the tabs mean knows no page; and nothing else of ours knows the studio.
    "studio without a page": Room(
        ours(*(f"studio.{name}" for name in STUDIO_VALUES)),
        {"gradio", "fastapi", "starlette", "uvicorn"} | COMMANDS,
    ),
    "all but the studio": Room(
        {"budcache"}, {"gradio"} | ours("studio"), but=ours("studio", "cli", "__main__") | {"budcache"}
    ),
    "workers": Room(ours("workers"), ours("baselines", "strategies", "comparison", "report", "cli")),
    "all but the workers": Room(
        {"budcache"}, {"ray"} | ours("workers"), but=ours("workers", "cli", "__main__") | {"budcache"}
    ),
    "all but the commands": Room({"budcache"}, COMMANDS, but=COMMANDS),
}
# Who may name diffusers and transformers at all; the commands only inside functions, so that `--help` comes at once.
KNOW_PIPELINES = ours("pipeline", "models", "baselines", "metrics", "cli", "testing.baselines")


class Import(NamedTuple):
    name: str
    late: bool  # inside a function, so not at import time


def read_imports(text: str, module: str, package: bool = False) -> set[Import]:
    """What the source text of a module imports, wherever in it; what only type checkers see is left out."""
    found: set[Import] = set()

    def visit(node: ast.AST, late: bool) -> None:
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for other in node.orelse:
                    visit(other, late)
                return
            case ast.Import():
                found.update(Import(alias.name, late) for alias in node.names)
            case ast.ImportFrom():
                home = node.module or ""
                if node.level:
                    parts = module.split(".")
                    up = node.level - package
                    home = ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])
                found.update(Import(f"{home}.{alias.name}", late) for alias in node.names)
            case ast.Call(
                func=ast.Name("__import__" | "import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(str(name)), *_],
            ):
                found.add(Import(name, late))
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, late)

    visit(ast.parse(text), late=False)
    return found


def private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def read_private(text: str) -> tuple[set[str], set[str]]:
    """The private names that a source text defines (of modules, classes and objects), and those it takes of others.

    What it takes are the private attributes of anything and the private names that it imports, but for its own.
    """
    defined: set[str] = set()
    taken: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                defined.add(name)
            case ast.Attribute(attr=name):
                taken.add(name)
            case ast.ImportFrom(names=names):
                taken.update(alias.name for alias in names)
            case ast.Constant(str(name)):  # getattr(other, "_name")
                taken.add(name)
    return {name for name in defined if private(name)}, {name for name in taken if private(name)} - defined


@cache
def hidden(room: str) -> set[str]:
    """The private names of a package."""
    texts = [path.read_text(encoding="utf-8") for module, path in FILES.items() if within(module, {room})]
    return set().union(*(read_private(text)[0] for text in texts))


def read_bases(text: str, module: str) -> set[str]:
    """Where the base classes of a source text's classes are imported from."""
    homes = {name.rpartition(".")[2]: name for name, _ in read_imports(text, module)}
    bases = [base for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) for base in node.bases]
    names = [ast.unparse(base).partition("[")[0].split(".") for base in bases]
    return {".".join([homes[name], *more]) for name, *more in names if name in homes}


def name_of(path: Path) -> str:
    return ".".join(["budcache", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")


FILES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
each_module = pytest.mark.parametrize("module", FILES)


@cache
def imports(module: str) -> set[Import]:
    path = FILES[module]
    return read_imports(path.read_text(encoding="utf-8"), module, package=path.name == "__init__.py")


@cache
def reach(module: str) -> dict[str, str]:
    """Everything that a module imports, itself or through others of ours, and which of them does.

    The package itself is the door, through which everything can be had, so the way does not lead through it.
    """
    found: dict[str, str] = {}
    seen: set[str] = set()
    ahead = [module]
    while ahead:
        here = ahead.pop()
        if here in seen or here == "budcache":
            continue
        seen.add(here)
        ahead.append(here.rpartition(".")[0])  # importing a module imports its package first
        for name, _ in imports(here):
            found.setdefault(name, here)
            if ours := home(name):
                ahead.append(ours)
    return found


def home(name: str) -> str | None:
    """The module of ours that a name is, or is defined in."""
    while name and name not in FILES:
        name = name.rpartition(".")[0]
    return name or None


def within(name: str, rooms: set[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def only(names: dict[str, str], rooms: set[str]) -> dict[str, str]:
    return {name: by for name, by in names.items() if within(name, rooms)}


def test_the_reader_reads():
    text = """
import os, torch.nn as nn
from typing import TYPE_CHECKING
from diffusers import FluxPipeline
from . import sibling
from .sibling import thing
from ..mask import Mask
if TYPE_CHECKING:
    import transformers
else:
    import plain
class Room:
    import numpy
try:
    import lpips
except ImportError:
    pass
def later():
    import torchvision
    importlib.import_module("peft")
"""
    found = read_imports(text, "budcache.strategies.anneal")
    assert {name for name, late in found if late} == {"torchvision", "peft"}
    assert {name for name, late in found if not late} == {
        *("os", "torch.nn", "typing.TYPE_CHECKING", "diffusers.FluxPipeline", "plain", "numpy", "lpips"),
        *("budcache.strategies.sibling", "budcache.strategies.sibling.thing", "budcache.mask.Mask"),
    }
    assert read_imports("from .a import b", "budcache.strategies", package=True) == {
        Import("budcache.strategies.a.b", False)
    }


def test_the_reader_reads_what_is_private():
    text = """
from budcache.pipeline import parts
from budcache.pipeline.scheduler import BudcacheScheduler, _hidden
from budcache.mask import Mask
class Steps(BudcacheScheduler, parts.Part, dict[str, int]):
    _own = 1
    def _look(self, other):
        self._mine, self.seen = 2, other.__class__
        return self._own, self._theirs, other._place, other._mine, getattr(other, "_far")
"""
    assert read_private(text) == ({"_own", "_look", "_mine"}, {"_hidden", "_theirs", "_place", "_far"})
    assert hidden("budcache.pipeline") > {"_begin_run", "_ends_skipped", "_loop"}
    assert read_bases(text, "budcache.baselines.runs") == {
        "budcache.pipeline.scheduler.BudcacheScheduler",
        "budcache.pipeline.parts.Part",
    }


def test_the_reader_follows():
    assert reach("budcache.numerics.rollout")["budcache.wording.quote"] != "budcache.numerics.rollout"
    assert within("torch.nn", TENSORS)
    assert not within("torchvision", TENSORS)


def test_every_room_is_there():
    named = {name for room in ROOMS.values() for name in room.modules | room.unknown | room.but} | KNOW_PIPELINES
    assert {name for name in named if within(name, {"budcache"})} <= set(FILES)


@pytest.mark.parametrize(
    ("module", "room"),
    [
        pytest.param(module, room, id=f"{name}-{module}")
        for name, room in ROOMS.items()
        for module in FILES
        if within(module, room.modules) and not within(module, room.but)
    ],
)
def test_a_room_knows_nothing_of_what_lies_outside(module, room):
    assert only(reach(module), room.unknown) == {}


def test_no_package_has_the_name_of_a_public_function():
    """`import budcache.search` would put the package where the function was."""
    functions = {name for name in budcache.__all__ if callable(getattr(budcache, name)) and name.islower()}
    assert functions >= {"search", "fit", "align", "apply", "applied", "load", "estimate"}
    assert {name for name in functions if f"budcache.{name}" in FILES} == set()


@pytest.mark.parametrize("module", [module for module in FILES if module != "budcache"])
def test_modules_name_their_sources(module):
    """Importing from the package itself would hide who is imported."""
    through_the_door = [name for name, _ in imports(module) if home(name) == "budcache"]
    assert [name for name in through_the_door if name not in ("budcache", "budcache.__version__")] == []


@pytest.mark.parametrize("module", [module for module in FILES if within(module, {"budcache.baselines"})])
def test_baselines_stand_on_what_pipeline_documents(module):
    """No private name of `pipeline` is used, and none of its classes inherited from."""
    text = FILES[module].read_text(encoding="utf-8")
    assert read_private(text)[1] & hidden("budcache.pipeline") == set()
    assert {base for base in read_bases(text, module) if within(base, {"budcache.pipeline"})} == set()


@each_module
def test_torchvision_and_lpips_are_never_needed_to_import(module):
    assert [name for name, late in imports(module) if not late and within(name, {"torchvision", "lpips"})] == []


@each_module
def test_few_know_diffusers(module):
    allowed, at_once = within(module, KNOW_PIPELINES), not within(module, COMMANDS)
    foreign = [entry for entry in imports(module) if within(entry.name, PIPELINES)]
    assert [name for name, late in foreign if not (allowed and (at_once or late))] == []


@pytest.mark.parametrize("module", [module for module in FILES if not within(module, COMMANDS)])
def test_only_the_command_line_prints(module):
    tree = ast.parse(FILES[module].read_text(encoding="utf-8"))
    assert [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "print"] == []


def test_importing_budcache_loads_no_torch():
    program = "import sys, budcache, budcache.testing; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.split()
    assert "budcache" in loaded
    assert not {*TENSORS, *PIPELINES, "rich", "typer", "jinja2", "matplotlib", "tqdm", "ray", "gradio"} & set(loaded)


@each_module
def test_every_module_can_be_imported(module):
    assert importlib.import_module(module).__name__ == module


@pytest.mark.parametrize("name", budcache.__all__)
def test_every_public_name_is_there_and_stays(name):
    found = getattr(budcache, name)
    assert getattr(budcache, name) is found
    assert not isinstance(found, ModuleType)
    assert name in dir(budcache)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="'nonsense'"):
        budcache.nonsense  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("budcache.nonsense")
