"""The command as users run it: on running clusters, on one of its own, interrupted, and left alone by its cluster."""

from __future__ import annotations

import os
import pty
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import budcache
from budcache.errors import WorkerError
from budcache.workers.cluster import _connect

from .same import COMMAND, moving, scores

WORKERS = "--workers"
ENVIRONMENT = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
TOKEN = {"RAY_AUTH_MODE": "token"}  # which Ray sends to an address only if it is told to

# The command, to which something is done as soon as its ledger has so many lines.
DRIVER = """
import os, signal, sys
lines, deed = int(sys.argv.pop(1)), sys.argv.pop(1)
from budcache.storage.journal import Journal
write = Journal.write

def writing(journal, entry):
    write(journal, entry)
    if journal.path.read_bytes().count(b"\\n") == 1 + lines:
        exec(deed)

Journal.write = writing
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
from budcache.cli import main
main()
"""
# As a terminal does it, to everybody in the foreground; said before who was there.
INTERRUPT = """
import psutil
print(*[process.pid for process in psutil.Process().children(recursive=True)], flush=True)
os.killpg(0, signal.SIGINT)
"""
# What the first server that a cluster starts for a client does, as some of Ray's do by themselves.
DIES_ONCE = """
import os
from pathlib import Path
if "specific-server" in Path("/proc/self/cmdline").read_text():
    try:
        (Path(__file__).parent / "died").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        os._exit(1)
"""


def begun(cwd, *arguments, lines=0, deed="", **more):
    """The search of `same.py` in a process of its own, and group of its own."""
    command = [sys.executable, "-c", DRIVER, str(lines), deed, *COMMAND, *map(str, arguments)]
    more = {"env": ENVIRONMENT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.Popen(command, cwd=cwd, text=True, start_new_session=True, **more)


def ended(cwd, *arguments, **more):
    """The same, when it has ended: code, output, errors."""
    process = begun(cwd, *arguments, **more)
    output, errors = process.communicate(timeout=500)
    return process.returncode, output, errors


def found(cwd):
    return moving(budcache.Ladder.load(cwd / "found.json"))


def said(errors):
    """What the command itself said last, and nothing of others behind it; Ray's own threads may complain before."""
    assert f'File "{Path(budcache.__file__).parent}' not in errors, "a traceback of ours"
    return errors.strip().splitlines()[-1]


def free_port():
    """One that nobody else is given meanwhile: below those that systems hand out, beside those that Ray takes."""
    while True:
        port = 24_500 + secrets.randbelow(7_500)
        with socket.socket() as one, suppress(OSError):
            one.bind(("", port))
            return port


@contextmanager
def cluster_started(*options, **more):
    """A cluster as people start one, with a folder of its own, by which it is found: its environment and address.

    It alone sees `more` variables.
    """
    home = Path(tempfile.mkdtemp(prefix="rt"))  # a short name: sockets are in it
    # A token of its own: without one, whether a cluster asks for any depends on what this machine has run before.
    env = {**ENVIRONMENT, "RAY_TMPDIR": str(home), "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = "from ray.scripts.scripts import main; main()"
    start = [sys.executable, "-c", ray, "start", "--head", "--port", "0", "--num-cpus", "2", *options]
    start += ["--object-store-memory", str(80 * 2**20), "--include-dashboard", "false"]
    try:
        subprocess.run(start, env=env | TOKEN | more, check=True, capture_output=True, timeout=300)
        yield env, (home / "ray" / "ray_current_cluster").read_text().strip()
    finally:
        for process in processes_of(home):
            process.kill()
        psutil.wait_procs(processes_of(home), 30)
        shutil.rmtree(home, ignore_errors=True)


def ended_outside(cwd, *arguments, deed="", lines=0, **more):
    """The search in a process that comes from outside to a cluster with `more` variables: code, output, errors.

    On busy cores Ray's server for clients is there and answers nobody, now and then: then there is another cluster.
    """
    for _ in range(3):
        port = free_port()
        with cluster_started("--ray-client-server-port", str(port), **more) as (env, _):
            kill = deed.format(victims=[process.pid for process in processes_of(Path(env["RAY_TMPDIR"]))])
            where = (WORKERS, f"ray://127.0.0.1:{port}", *arguments)
            code, output, errors = ended(cwd, *where, lines=lines, deed=kill, env=env | TOKEN)
        if "connection timeout" not in errors:
            break
    return code, output, errors


def processes_of(home):
    """Those of the cluster with that folder. `ray stop` would end all clusters of this machine."""
    address = home / "ray" / "ray_current_cluster"
    marks = [str(home), *([address.read_text().strip()] if address.exists() else [])]
    return [one for one in psutil.process_iter() if any(mark in part for mark in marks for part in command_of(one))]


def command_of(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def gone(processes, seconds=60):
    """Whether processes end in time."""
    there = [psutil.Process(pid) for pid in processes if psutil.pid_exists(pid)]
    return not psutil.wait_procs(there, seconds)[1]


class GrpcError(Exception):
    """As gRPC's own errors, which are no kind of any error that Python knows."""


class Failing:
    """Ray, as it fails to connect: which it does by itself too seldom to wait for it."""

    def __init__(self, error, times):
        self.error, self.times, self.tried = error, times, 0

    def init(self, **options):
        self.tried += 1
        if self.tried <= self.times:
            raise self.error

    def shutdown(self):
        raise RuntimeError("not connected")


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ConnectionAbortedError("RuntimeError: Starting Ray client server failed. See its log."), 5),
        (ConnectionAbortedError("Initialization failure:\nTraceback\npsutil.ZombieProcess: PID still exists"), 5),
        (GrpcError('<RPC that terminated with:\n\tdetails = "Failed to serialize response!"\n\tdebug = "x"\n>'), 5),
        (ConnectionError("ray client connection timeout"), 2),
        (ConnectionError("another version of Ray"), 1),
    ],
    ids=["no server", "a dead server", "a server that died later", "busy", "for good"],
)
def test_how_often_a_cluster_is_asked_again(error, tries):
    at_last = Failing(error, tries - 1)
    _connect(at_last, "ray://there:10001", {})
    assert at_last.tried == tries
    never = Failing(error, 99)
    with pytest.raises(WorkerError, match=r"cannot be reached at ray://there:10001: [^<>\n]*\.") as told:
        _connect(never, "ray://there:10001", {})
    assert never.tried == tries
    assert "debug" not in str(told.value)


def test_an_address_where_nobody_answers_is_one_sentence(tmp_path):
    code, output, errors = ended(tmp_path, WORKERS, "127.0.0.1:1")
    assert (code, output) == (2, "")
    assert errors.startswith("budcache: a Ray cluster cannot be reached at 127.0.0.1:1: nobody answers")
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_on_a_running_cluster_by_its_address_with_every_worker_in_sight(alone, nodes, cluster, tmp_path):
    """In a terminal, whose bar shows what each worker has done."""
    master, terminal = pty.openpty()
    env = {**ENVIRONMENT, "COLUMNS": "200", "TERM": "xterm"}
    process = begun(
        tmp_path, WORKERS, nodes.address, "--worker-count", 2, "--cpus-per-worker", 0.5, stderr=terminal, env=env
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # how the end of a terminal looks
            break
    os.close(master)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown.decode()
    assert "ladder of 2 rungs" in output
    assert found(tmp_path) == moving(alone[0])
    assert scores(tmp_path / "found.ledger.jsonl") == scores(alone[1])
    counts = [tuple(map(int, each)) for each in re.findall(r"2 workers: (\d+)\+(\d+)", shown.decode())]
    assert min(counts[-1]) > 0
    assert sum(counts[-1]) <= alone[0].searched.calls


@pytest.mark.slow
def test_found_by_itself_interrupted_and_gone_on_with(alone, tmp_path):
    with cluster_started() as (env, _):
        one = (WORKERS, "auto", "--worker-count", 1)
        code, _, errors = ended(tmp_path, *one, lines=3, deed=INTERRUPT, env=env)
        assert code == 130, errors
        assert said(errors).startswith("budcache: stopped. What was finished is kept")
        workers = [
            process for process in processes_of(Path(env["RAY_TMPDIR"])) if "ray::Worker" in command_of(process)[0]
        ]
        assert gone([process.pid for process in workers])
        code, _, errors = ended(tmp_path, *one, env=env)
        assert code == 0, errors
    assert found(tmp_path) == moving(alone[0])


@pytest.mark.slow
def test_from_outside_also_where_the_first_server_for_clients_dies_at_its_start(alone, tmp_path):
    pytest.importorskip("grpc")
    (tmp_path / "sitecustomize.py").write_text(DIES_ONCE)
    code, _, errors = ended_outside(tmp_path, "--worker-count", 2, PYTHONPATH=str(tmp_path))
    assert code == 0, errors
    assert (tmp_path / "died").exists()
    assert found(tmp_path) == moving(alone[0])


@pytest.mark.slow
def test_a_cluster_that_is_lost_leaves_a_ledger_from_which_one_process_goes_on(alone, run_here, monkeypatch, tmp_path):
    with cluster_started() as (env, address):
        victims = [process.pid for process in processes_of(Path(env["RAY_TMPDIR"]))]
        code, output, errors = ended(tmp_path, WORKERS, address, env=env)
        assert (code, output) == (2, ""), errors
        assert "cannot be reached" in said(errors)
        assert "Set RAY_AUTH_MODE=token here if the cluster asks for a token" in said(errors)
        deed = f"[os.kill(pid, signal.SIGKILL) for pid in {victims}]"
        one = (WORKERS, address, "--worker-count", 1)
        code, output, errors = ended(tmp_path, *one, lines=2, deed=deed, env=env | TOKEN)
    assert (code, output) == (2, ""), errors
    assert re.match(r"budcache: the Ray cluster is lost \(nobody answers at .*goes on from there", said(errors))
    known = scores(tmp_path / "found.ledger.jsonl")
    assert known == scores(alone[1])[: len(known)]
    assert len(known) >= 2  # what workers had answered before is kept as well; the alignment behind it is missing
    monkeypatch.chdir(tmp_path)
    code, output, errors = run_here(*COMMAND)
    assert code == 0, errors
    assert " of them in runs before this one)" in output
    assert found(tmp_path) == moving(alone[0])
    assert scores(tmp_path / "found.ledger.jsonl") == scores(alone[1])


@pytest.mark.slow
def test_a_cluster_that_is_lost_to_who_came_from_outside_is_a_sentence(alone, tmp_path):
    pytest.importorskip("grpc")
    deed = "[os.kill(pid, signal.SIGKILL) for pid in {victims}]"
    code, output, errors = ended_outside(tmp_path, "--worker-count", 1, lines=2, deed=deed)
    assert (code, output) == (2, ""), errors
    assert re.match(r"budcache: the Ray cluster is lost .*goes on from there", said(errors)), errors
    known = scores(tmp_path / "found.ledger.jsonl")
    assert known == scores(alone[1])[: len(known)]
    assert len(known) >= 2


@pytest.mark.slow
def test_an_interrupt_leaves_nobody_behind(alone, tmp_path):
    """In the middle of the work, of a cluster that the command had started itself."""
    home = Path(tempfile.mkdtemp(prefix="rt"))
    env = {**ENVIRONMENT, "RAY_TMPDIR": str(home)}
    try:
        code, output, errors = ended(tmp_path, WORKERS, "ray", "--worker-count", 1, lines=3, deed=INTERRUPT, env=env)
        assert code == 130, errors
        assert said(errors).startswith("budcache: stopped. What was finished is kept")
        there = [int(pid) for pid in output.split()]
        assert len(there) > 3
        assert gone(there)
        assert gone([process.pid for process in processes_of(home)])
    finally:
        shutil.rmtree(home, ignore_errors=True)
    known = scores(tmp_path / "found.ledger.jsonl")
    assert known == scores(alone[1])[:3]
