"""What the command answers before a command is called: help, the version, mistakes."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import budcache.cli
from budcache.cli import COMMANDS

HELP = """
import sys
sys.argv = ["budcache", "--help"]
from budcache.cli import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_each_command_has_its_sentence_in_the_overview(commands):
    assert commands.keys() == COMMANDS.keys()
    assert {name: inspect.cleandoc(found.help).splitlines()[0] for name, found in commands.items()} == {
        name: summary for name, (_, summary) in COMMANDS.items()
    }


def test_no_module_has_a_command_that_the_overview_does_not_know():
    found = set()
    for path in Path(budcache.cli.__file__).parent.glob("*.py"):
        functions = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
        for node in functions:
            if any(ast.unparse(each).split("(")[0] == "command" for each in node.decorator_list):
                found.add((node.name.replace("_", "-"), path.stem))
    assert found == {(name, module) for name, (module, _) in COMMANDS.items()}


def test_help_lists_all_commands_and_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", HELP], check=True, capture_output=True, text=True)
    *lines, loaded = done.stdout.splitlines()
    listed = [line.split()[1] for line in lines if line.startswith("│ ") and line[2:3].isalpha()]
    assert listed == list(COMMANDS)
    heavy = {"torch", "numpy", "diffusers", "transformers", "matplotlib", "jinja2", "yaml", "PIL", "ray", "tqdm"}
    assert "budcache" in loaded.split() and not heavy & set(loaded.split())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["serach"], 2, "No such command 'serach'"),
        (["--budget"], 2, "No such option"),
        (["--version"], 0, budcache.__version__),
        (["--help", "search"], 0, "compare"),  # of everything
        (["search", "--help"], 0, "--budget"),
        (["--", "show", "nowhere.json"], 2, "nowhere.json"),
        ([], 2, "Usage"),
    ],
)
def test_what_comes_instead_of_a_command(arguments, code, words, run_here):
    found, out, err = run_here(*arguments)
    assert found == code
    assert words in out + err


def test_the_module_is_the_command():
    found = subprocess.run([sys.executable, "-m", "budcache", "--version"], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["budcache", budcache.__version__]
    refused = subprocess.run([sys.executable, "-m", "budcache", "serach"], capture_output=True, text=True)
    assert refused.returncode == 2
    assert "serach" in refused.stderr
