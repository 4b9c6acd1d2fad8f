"""What comes from outside: nothing of it is executed, and nothing is fetched unasked."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import budcache

SOURCE = Path(budcache.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
# Both unpickle what they have pickled themselves a moment ago.
OWN_PICKLES = {"testing/strategies.py", "testing/baselines.py"}


def calls(path: Path) -> list[tuple[str, ast.Call]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [(ast.unparse(node.func), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_nothing_from_outside_is_executed(path):
    for name, call in calls(path):
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if name == "torch.load":
            assert given.get("weights_only") == "True"
        if name in ("np.load", "numpy.load"):
            assert given.get("allow_pickle") == "False"
        if name == "yaml.load":
            assert [ast.unparse(argument) for argument in call.args[1:]] == ["Plain"]  # a SafeLoader, and less
        assert given.get("trust_remote_code", "False") == "False"
        assert name not in ("eval", "exec", "os.system", "yaml.unsafe_load", "yaml.full_load", "joblib.load")
        if name in ("pickle.load", "pickle.loads", "pickle.Unpickler"):
            assert path.relative_to(SOURCE).as_posix() in OWN_PICKLES


# What says the time of day: a clock may be set back at any moment, and two machines never agree.
DAYTIME = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}


def asks_the_time_of_day(path: Path) -> list[str]:
    """Calls and imports; files' own times are compared with each other alone, in the studio."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    froms = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime")
    ]
    found = [each.name for node in froms for each in node.names if each.name in DAYTIME | {"datetime", "date"}]
    return found + [
        name
        for name, _ in calls(path)
        if name.rpartition(".")[0].endswith(("time", "date")) and name.rpartition(".")[2] in DAYTIME
    ]


def test_nothing_is_decided_by_the_time_of_day(tmp_path):
    """So no clock that goes backwards can disturb anything: what is timed is timed by clocks that only go on."""
    assert {path.name: asked for path in FILES if (asked := asks_the_time_of_day(path))} == {}
    path = tmp_path / "a.py"
    for line in ("time.time()", "datetime.datetime.now()", "from time import time", "datetime.date.today()"):
        path.write_text(line)
        assert asks_the_time_of_day(path)


def test_the_rules_find_what_they_forbid(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("torch.load(x)\nf(trust_remote_code=True)\n")
    assert [name for name, _ in calls(path)] == ["torch.load", "f"]
    for line in ("torch.load(x)", "np.load(x)", "f(trust_remote_code=True)", "eval(x)", "pickle.loads(x)"):
        path.write_text(line)
        with pytest.raises((AssertionError, ValueError)):
            test_nothing_from_outside_is_executed(path)


WATCHING = """
import sys
asked = []
FORBIDDEN = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")
sys.addaudithook(lambda event, args: asked.append(event) if event in FORBIDDEN else None)
import budcache, budcache.cli
for name in budcache.__all__:
    getattr(budcache, name)
print(*asked)
"""


@pytest.mark.slow
def test_importing_everything_asks_no_network():
    """Not even an address is looked up; some libraries try whether this machine has IPv6, which asks nobody."""
    done = subprocess.run([sys.executable, "-c", WATCHING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
