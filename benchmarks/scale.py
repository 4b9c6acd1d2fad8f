"""What workers are worth: two against one, what the engine costs per mask, and how far many of them carry.

Speed is a ratio of searches that take turns on the same two processes: with both workers, and with one. The engine's
cost is that of questions that ask nothing. Many workers are simulated by actors that sleep instead of calling a model;
where main memory does not hold as many as were asked for, there are as many as it holds.

    python benchmarks/scale.py                      # all of it, under three minutes on two idle cores
    python benchmarks/scale.py --parts speed        # two workers over one
    python benchmarks/scale.py --parts many --actors 8,32,64 --memory 8
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
from functools import partial
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers would let everybody else on busy cores go first
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # only the figures go to the standard output

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
ROOM = 10_000_000  # bytes that an actor takes later
LIGHT = partial(Workers, cpus=0.001, gpus=0, patience=900)
PARTS = ("bytes", "speed", "engine", "many")


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


@dataclass(frozen=True)
class Took:
    """What a search took: seconds, and of processor time the driver's and each worker's."""

    seconds: float
    driver: float
    workers: list[float]

    @property
    def processor(self) -> float:
        """Seconds on idle cores, one for each worker: workers at once, but never while the driver thinks."""
        return self.driver + max(self.workers)


def took(team: Team, work: Callable[[], Any]) -> Took:
    processes = [psutil.Process(member.process) for member in team.fleet.members]

    def spent() -> list[float]:
        return [times.user + times.system for times in (process.cpu_times() for process in processes)]

    driver, before = time.process_time(), spent()
    seconds = timed(work)
    after = spent()
    return Took(seconds, time.process_time() - driver, [b - a for a, b in zip(before, after, strict=True)])


def speed(team: Team, steps: int, budgets: list[int], prompts: int, rounds: int) -> dict[str, Any]:
    """Searches with two workers and with one by turns.

    The ratio by the clock is the figure, on idle cores. Where others work beside it, the one by processor time says
    what the search itself allows; what messages take is not in it.
    """
    from budcache.models import prompts as texts

    found: dict[int, list[Took]] = {1: [], 2: []}
    known, shared = texts(MODEL, "calibration"), {"batch": 2, "progress": False}
    search = {"steps": steps, "budgets": budgets, "prompts": known[:prompts], **shared}
    budcache.search(team, steps=4, budgets=2, prompts=known[:4], **shared)  # the first one warms up
    for turn in range(rounds):
        for count in (1, 2) if turn % 2 else (2, 1):
            with only(team, count):
                found[count].append(took(team, lambda: budcache.search(team, **search)))
    pairs = list(zip(found[1], found[2], strict=True))
    ratios = [one.seconds / two.seconds for one, two in pairs]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio_by_processor_time": round(statistics.median(one.processor / two.processor for one, two in pairs), 3),
        "seconds_of_one": round(statistics.median(one.seconds for one, _ in pairs), 2),
        "seconds_of_two": round(statistics.median(two.seconds for _, two in pairs), 2),
        "driver_cpu_seconds": round(statistics.median(two.driver for _, two in pairs), 2),
        "worker_cpu_seconds": [round(each, 2) for each in pairs[-1][1].workers],
        "cores": os.cpu_count(),
        "load": round(psutil.getloadavg()[0], 1),
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


def fitting(ray: Any, actors: int, memory: float) -> int:
    """As many actors as fit: by what one of them has for itself alone."""
    with Fleet(ray, LIGHT(1), kind=Sleeper) as fleet:
        each = psutil.Process(fleet.members[0].process).memory_full_info().uss + ROOM
    return min(actors, int(min(memory, 0.7 * psutil.virtual_memory().available) / each))


def simulated(ray: Any, counts: list[int], memory: float, rounds: int) -> dict[str, Any]:
    """How much of the time actors that sleep are asleep, for several numbers of them."""
    most, begin = fitting(ray, max(counts), memory), time.perf_counter()
    with Fleet(ray, LIGHT(most), kind=Sleeper) as fleet:
        started, everybody = time.perf_counter() - begin, fleet.members
        processes = [psutil.Process(member.process) for member in everybody]
        each = statistics.mean(process.memory_full_info().uss for process in processes)
        rows = []
        for count in sorted({min(count, most) for count in counts}):
            fleet.members = everybody[:count]
            rows += [asleep(fleet, side_by_side, max(2, rounds // side_by_side)) for side_by_side in (1, 8)]
        fleet.members = everybody
    return {
        "asked_for": counts,
        "most_that_fit": most,
        "megabytes_of_an_actor": round(each / 1e6, 1),
        "seconds_to_start": round(started, 1),
        "rows": rows,
    }


def asleep(fleet: Fleet, side_by_side: int, rounds: int) -> dict[str, Any]:
    """Rounds of messages to all actors, with as many masks each."""
    actors = len(fleet.members)
    shards = Shards(fleet, SimpleOpening({number: {} for number in range(actors)}), None)  # type: ignore[arg-type]
    shards.teach()
    list(shards.ask([Nothing(0)]))
    cpu, begin = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        list(shards.ask([Nothing(number) for number in range(side_by_side)]))
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    per_message = cpu / (rounds * actors)
    return {
        "actors": actors,
        "masks_side_by_side": side_by_side,
        "efficiency": round(rounds * side_by_side * CALL / seconds, 3),
        "driver_cpu_ms_per_message": round(1e3 * per_message, 3),
        "workers_at_which_the_driver_is_busy": int(side_by_side * CALL / per_message),
    }


@dataclass(frozen=True)
class SimpleOpening:
    """As much of an opening as runs that sleep need."""

    calls: dict[int, dict[str, Any]]
    teaching: Any = field(default_factory=lambda: SimpleNamespace(finer=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=2, help="searches with one and with two workers")
    parser.add_argument("--actors", default="8,32,128", help="how many that sleep")
    parser.add_argument("--memory", type=float, default=8, help="GB at most for those that sleep")
    parser.add_argument("--quick", action="store_true", help="as little as shows that it works; no figures to publish")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; choose of {', '.join(PARTS)}")
    actors = [2, 4] if args.quick else [int(each) for each in args.actors.split(",")]
    workers, begin = Workers(2), time.perf_counter()
    found: dict[str, Any] = {"benchmark": "scale", "quick": args.quick}
    if "bytes" in parts:
        found["bytes"] = sizes()
    with connected(workers) as ray:
        if {"speed", "engine"} & set(parts):
            with workers.started(MODEL) as team:
                if "speed" in parts:
                    size = (8, [3], 4, 1) if args.quick else (28, [6, 8], 16, args.rounds)
                    found["two workers over one"] = speed(team, *size)
                if "engine" in parts:
                    found["engine"] = overhead(team, 5 if args.quick else 100)
        if "many" in parts:
            found["simulated"] = simulated(ray, actors, args.memory * 1e9, 2 if args.quick else 24)
    found["seconds"] = round(time.perf_counter() - begin, 1)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
