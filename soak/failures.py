"""Failures inside of a pipeline, of every kind at every step: nothing is left of them, and the next run is bit-equal.

A tiny FLUX pipeline is served (plain reuse, rows, residual reuse), driven through the seam, or recorded, and fails: an
exception in the network, the scheduler, a callback or the decoder; `interrupt`; Ctrl-C; the garbage collector in the
middle, with nobody holding the run any more; a fork in the middle; the end of the program while a run is open.

    python -m soak.failures               # 1,000 failures
    python -m soak.failures --count 100
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import Any

from soak.common import ZOO, main, peak_bytes, require

EXITS = 100  # one end of a program for so many failures: it takes a process of its own
GROWTH = 100_000_000
FORKED = 60  # seconds after which a forked process hangs


class Failure(Exception):
    """Ours, to be told from any other."""


@contextmanager
def failing_at(what: str, pipe: Any, step: int, call: dict[str, Any]) -> Iterator[None]:
    """Something goes wrong the so-manieth time that a part of the pipeline is at work."""
    made = 0

    def fail(*_: Any, **__: Any) -> None:
        nonlocal made
        made += 1
        if made == step:
            ACTS[what](pipe)

    scheduler = type(pipe.scheduler)
    stock = scheduler.step
    with ExitStack() as undo:
        if what == "scheduler":
            # With its signature, at which diffusers and we look.
            scheduler.step = wraps(stock)(lambda self, *args, **more: (fail(), stock(self, *args, **more))[1])
            undo.callback(setattr, scheduler, "step", stock)
        elif what == "decoder":
            pipe.vae.decode = _raise
            undo.callback(delattr, pipe.vae, "decode")
        elif what in ("callback", "interrupt"):
            call["callback_on_step_end"] = lambda pipe, number, time, kept: (fail(), kept)[1]
        else:
            undo.callback(pipe.transformer.register_forward_pre_hook(fail).remove)
        yield


def _raise(*_: Any, **__: Any) -> None:
    raise Failure("on purpose")


def _interrupt(pipe: Any) -> None:
    pipe._interrupt = True


def _fork(pipe: Any) -> None:
    """A copy of the process in the middle of a run, as a server's worker might be: it asks what is open, and ends.

    A run that is driven has its thread in the other process, so there is nobody to answer, which must be said.
    """
    from budcache.errors import PipelineError
    from budcache.pipeline import driven

    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(FORKED)
            for model in list(driven._open):
                if not hasattr(model, "noise"):  # it is just being opened: there is nobody yet who could ask it
                    continue
                with suppress(PipelineError):
                    model.compute(model.noise + 1, model.sigmas[0])
                    code = 2
                model.close()
            str(pipe.scheduler.timesteps)
            code = 0 if code == 1 else code
        finally:
            os._exit(code)
    require(os.waitpid(child, 0)[1] == 0, "a fork in the middle of a run did not end, or was answered by nobody")


ACTS: dict[str, Callable[[Any], None]] = {
    "network": _raise,
    "scheduler": _raise,
    "callback": _raise,
    "decoder": _raise,
    "interrupt": _interrupt,
    "ctrl-c": lambda _: signal.raise_signal(signal.SIGINT),
    "garbage": lambda _: gc.collect(),
    "fork": _fork,
}


class Pipeline:
    """The pipeline, its ways to be used, and what it does when nothing goes wrong."""

    def __init__(self) -> None:
        import torch
        from helpers import STEPS, flux, latents

        self.kind, self.pipe = flux()
        self.steps, self.latents, self.torch = STEPS, latents, torch
        self.bare = latents(self.kind, self.pipe)
        self.picture = self.run({})
        self.hooks, self.threads, self.scheduler = self._hooks(), threading.active_count(), self.pipe.scheduler

    def run(self, more: dict[str, Any]) -> Any:
        """A whole run, decoder and all."""
        generator = self.torch.Generator().manual_seed(0)
        return self.pipe(
            **{**self.kind.kwargs(), "num_inference_steps": self.steps, "generator": generator, "output_type": "pt"},
            **more,
        ).images

    def served(self, more: dict[str, Any], **policy: Any) -> None:
        import budcache

        with budcache.applied(self.pipe, budcache.Policy(mask="110100", **policy)):
            self.run(more)

    def driven(self, more: dict[str, Any]) -> None:
        """Opened, asked and let go without being closed."""
        from helpers import opened

        model = opened(self.kind, self.pipe)
        for step in range(3):
            model.compute(model.noise, model.sigmas[step])
        if more:
            _fork(self.pipe)

    def recorded(self, more: dict[str, Any]) -> None:
        import budcache

        record = budcache.Record()
        try:
            with budcache.recording(self.pipe, record):
                self.run(more)
        finally:
            require(len(record) <= 1, "a record has more runs than were made")

    def _hooks(self) -> list[int]:
        parts = [part for part in self.pipe.components.values() if isinstance(part, self.torch.nn.Module)]
        modules = [module for part in parts for module in part.modules()]
        return [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in modules] + [
            len(vars(module)) for module in modules
        ]

    def check(self, what: str) -> None:
        """As if nothing had been: the same scheduler, threads and hooks, and the same picture to the last bit."""
        until = time.monotonic() + 20
        while threading.active_count() > self.threads and time.monotonic() < until:
            gc.collect()
            time.sleep(0.01)
        require(threading.active_count() == self.threads, f"{what} leaves a thread behind")
        require(self.pipe.scheduler is self.scheduler, f"{what} leaves our scheduler behind")
        require(self._hooks() == self.hooks, f"{what} leaves a hook behind")
        require(self.torch.equal(self.latents(self.kind, self.pipe), self.bare), f"the run after {what} is another")

    def live(self) -> int:
        """Bytes of all tensors that are there."""
        gc.collect()
        tensors = [each for each in gc.get_objects() if isinstance(each, self.torch.Tensor)]
        return sum(each.numel() * each.element_size() for each in tensors)


EXITING = """
import sys
sys.path[:0] = {paths!r}
from helpers import flux, opened
kind, pipe = flux()
model = opened(kind, pipe)
model.compute(model.noise, model.sigmas[0])
{how}
"""
ENDINGS = ("", "sys.exit(0)", "raise KeyboardInterrupt")


def soak(seed: int, count: int) -> dict[str, Any]:
    """So many failures, drawn with a seed."""
    sys.path[:0] = ZOO
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chance, made, raised = random.Random(seed), Counter[str](), Counter[str]()
    here = Pipeline()
    rows = [{"outputs": [1.0]}, {"outputs": [1.2, -0.2], "noise": 0.01}, {"outputs": [1.1, -0.1]}]
    ways: dict[str, Callable[[dict[str, Any]], None]] = {
        "served": here.served,
        "rows": lambda more: here.served(more, rows=rows),
        "residual": lambda more: here.served(more, reuse="residual"),
        "driven": here.driven,
        "recorded": here.recorded,
    }
    before, peak = here.live(), 0
    for number in range(count):
        if number % EXITS == EXITS - 1:
            _exits(ENDINGS[number // EXITS % len(ENDINGS)])
            made["exit"] += 1
            continue
        way, what = chance.choice(list(ways)), chance.choice(list(ACTS))
        if way == "driven" and what in ("callback", "interrupt", "decoder", "scheduler"):
            what = "network"  # it has none of the others
        call: dict[str, Any] = {"from outside, too": True} if (way, what) == ("driven", "fork") else {}
        try:
            with failing_at(what, here.pipe, chance.randint(1, 3), call):
                ways[way](call)
        except (Failure, KeyboardInterrupt) as error:
            raised[type(error).__name__] += 1
        except Exception as error:
            raised[type(error).__name__] += 1
            require(isinstance(error.__cause__ or error.__context__ or error, Failure), f"{what}: {error!r}")
        made[f"{what} {way}"] += 1
        here.check(f"{what}, {way}")
        if number == 20:
            peak = peak_bytes()
    after, grown = here.live(), peak_bytes() - peak if peak else 0
    require(after <= before + 100_000, f"{after - before} bytes of tensors are left")
    require(grown < GROWTH, f"the process grew by {grown} bytes")
    require(torch.equal(here.run({}), here.picture), "the last picture is another one")
    told = Counter[str]()
    for name, times in made.items():
        told[name.partition(" ")[0]] += times
    return {"failures": sum(made.values()), **told, "raised": dict(raised), "tensor_bytes_left": after - before,
            "process_grown_mb": round(grown / 1e6, 1)}  # fmt: skip


def _exits(how: str) -> None:
    """A program ends while a run is open, in whatever way: it does end, and nothing crashes."""
    code = EXITING.format(paths=[*sys.path[:2], *filter(None, sys.path)], how=how)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    expected = (0,) if "Keyboard" not in how else (130, -signal.SIGINT, 1)
    require(done.returncode in expected, f"a program that ends while a run is open: {done.returncode} {done.stderr}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("failures", __doc__, soak, 1000)
