"""What workers are worth: two against one, what the engine costs per mask, and how far many of them carry.

Speed is a ratio of searches that take turns on the same two processes: with both workers, and with one. The engine's
cost is that of questions that ask nothing. Many workers are simulated by actors that sleep instead of calling a model.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil

import budcache
from budcache import Workers
from budcache.workers.cluster import connected
from budcache.workers.fleet import Fleet
from budcache.workers.shards import Shards
from budcache.workers.team import Team
from budcache.workers.worker import Report

MODEL = "tiny-flux"
CALL = 0.25  # seconds of a model call that is simulated: FLUX.1-dev on a large GPU
ACTOR_BYTES = 110_000_000  # what an actor without torch takes, and some room


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


# Two workers of one thread against one


@contextmanager
def only(team: Team, count: int) -> Iterator[Team]:
    """The first few workers of a team."""
    everybody = team.fleet.members
    team.fleet.members = everybody[:count]
    try:
        yield team
    finally:
        team.fleet.members = everybody


def speed(team: Team, steps: int, budgets: list[int], prompts: int, rounds: int) -> dict[str, Any]:
    from budcache.models import prompts as texts

    found: dict[int, list[float]] = {1: [], 2: []}
    search = {"steps": steps, "budgets": budgets, "prompts": texts(MODEL, "calibration")[:prompts], "batch": 2}
    for turn in range(rounds + 1):
        for count in (1, 2) if turn % 2 else (2, 1):
            with only(team, count):
                seconds = timed(lambda: budcache.search(team, **search, progress=False))
            if turn:  # the first one warms up
                found[count].append(seconds)
    ratios = [one / two for one, two in zip(found[1], found[2], strict=True)]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "seconds_of_one": round(statistics.median(found[1]), 2),
        "goal": 1.7,
    }


# What the engine costs


@dataclass(frozen=True)
class Nothing:
    """A question that asks nothing."""

    number: int

    def answer(self, known: Any, number: int) -> int:
        return self.number


def overhead(team: Team, rounds: int) -> dict[str, Any]:
    from budcache.jobs.setup import Setup
    from budcache.models import prompts as texts

    samples = [{"prompt": text} for text in texts(MODEL, "calibration")[:2]]
    with only(team, 1), Setup(team, 4).calibration(samples, 0) as known:

        def asked(count: int) -> float:
            return timed(lambda: list(known.ask([Nothing(number) for number in range(count)])))

        asked(1)
        single = statistics.median(asked(1) for _ in range(rounds))
        many = statistics.median(asked(32) for _ in range(rounds))
    return {"message_ms": round(1e3 * single, 2), "mask_of_32_ms": round(1e3 * many / 32, 3)}


def sizes(budget: int = 10, steps: int = 12) -> dict[str, int]:
    """Bytes of what goes to a worker and back for one mask and one sample; they do not depend on the latents' size."""
    import pickle

    from budcache.jobs.setup import Setup
    from budcache.mask import Mask
    from budcache.models import prompts as texts
    from budcache.refine.fit import FittedScorer, Form
    from budcache.refine.newton import GaussNewton
    from budcache.rows import MAX_BLEND

    found = {"to": 0, "back": 0}
    samples = [{"prompt": text} for text in texts(MODEL, "calibration")[:1]]
    with Setup(budcache.load(MODEL), steps).calibration(samples, 0, record=True) as known:
        stock = known.ask

        def counting(questions: Any) -> Any:
            for question, answers in zip(questions, stock(questions), strict=True):
                found["to"] += len(pickle.dumps(question))
                found["back"] += len(pickle.dumps(answers))
                yield answers

        known.ask = counting  # type: ignore[method-assign]
        score = FittedScorer(known, Form(MAX_BLEND, noise=True), arrivals=False).score(Mask.uniform(steps, budget))
        policy = budcache.Policy(mask=Mask.uniform(steps, budget), rows=score.rows)
        newton = GaussNewton(policy, known)
        equations = len(pickle.dumps(newton.equations(0)))
        gram = len(pickle.dumps(known.facts[0].gram))
    return {"mask_to_bytes": found["to"], "mask_back_bytes": found["back"], "newton_back": equations, "gram": gram}


# Many workers


class Sleeper:
    """An actor that has one run and takes as long as a model for each question, without one."""

    def where(self) -> tuple[str, int]:
        return "here", os.getpid()

    def work(self, key: int, opening: Any, numbers: list[int], questions: list[Nothing]) -> Report:
        time.sleep(CALL * len(numbers) * len(questions))
        facts = {number: SimpleNamespace(samples=1, size=1) for number in numbers} if opening is not None else {}
        answers = [[bytes(4600)] * len(numbers) for _ in questions]  # as much as the equations of a mask
        return Report(facts, answers, len(numbers) * len(questions))  # type: ignore[arg-type]


def simulated(ray: Any, actors: int, rounds: int) -> dict[str, Any]:
    needed = actors * ACTOR_BYTES
    if psutil.virtual_memory().available < 1.2 * needed:
        return {"actors": actors, "left out": f"{actors} actors take about {needed / 1e9:.0f} GB of main memory"}
    workers, started = Workers(actors, cpus=0.001, gpus=0, patience=1800), time.perf_counter()
    with Fleet(ray, workers, kind=Sleeper) as fleet:
        begun = time.perf_counter() - started
        opening = SimpleOpening({number: {} for number in range(actors)})
        shards = Shards(fleet, opening, None)  # type: ignore[arg-type]
        shards.teach()
        cpu, begin = time.process_time(), time.perf_counter()
        for number in range(rounds):
            list(shards.ask([Nothing(number)]))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    per_message = cpu / (rounds * actors)
    return {
        "actors": actors,
        "efficiency": round(rounds * CALL / seconds, 3),
        "driver_cpu_ms_per_message": round(1e3 * per_message, 3),
        "workers_at_which_the_driver_is_busy": int(CALL / per_message),
        "seconds_to_start": round(begun, 1),
    }


@dataclass(frozen=True)
class SimpleOpening:
    """As much of an opening as runs that sleep need."""

    calls: dict[int, dict[str, Any]]
    teaching: Any = field(default_factory=lambda: SimpleNamespace(finer=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--actors", default="8,32,128")
    parser.add_argument("--quick", action="store_true", help="as little as shows that it works; no figures to publish")
    args = parser.parse_args()
    rounds = 1 if args.quick else args.rounds
    actors = [4] if args.quick else [int(each) for each in args.actors.split(",")]
    workers = Workers(2)
    found: dict[str, Any] = {"benchmark": "scale", "quick": args.quick, "bytes": sizes()}
    with connected(workers) as ray:
        with workers.started(MODEL) as team:
            found["two workers over one"] = speed(team, *(8, [3], 4) if args.quick else (28, [6, 8], 16), rounds)
            found["engine"] = overhead(team, 5 if args.quick else 100)
        found["simulated"] = [simulated(ray, count, 4 if args.quick else 40) for count in actors]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
