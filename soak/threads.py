"""Eight threads at once: each serves through a pipeline of its own on shared networks, and budgets change between runs.

Every picture must be the one that a single thread draws. Then two threads run one and the same pipeline: each gets the
right picture or a sentence, never anything else.

    python -m soak.threads               # 10,000 runs
    python -m soak.threads --count 400
"""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from soak.common import ZOO, main, require

THREADS = 8
MISUSE = 20  # one run of a shared pipeline for so many others


def soak(seed: int, count: int) -> dict[str, Any]:
    """So many runs in all threads together."""
    sys.path[:0] = ZOO
    warnings.simplefilter("ignore")
    import torch
    from helpers import flux, latents

    import budcache
    from budcache import Ladder, Policy

    torch.set_num_threads(1)
    kind, pipe = flux()
    with torch.no_grad():  # a tokenizer is only for one thread at a time
        embeds, pooled, _ = pipe.encode_prompt(prompt="a cat", prompt_2=None, max_sequence_length=16)
    said = {"prompt": None, "prompt_embeds": embeds, "pooled_prompt_embeds": pooled}
    blends = [[1.0], [1.3, -0.3], [1.1, 0.1, -0.2]]
    ladder = Ladder.of([Policy(mask="100100"), Policy(mask="110100", weights=blends), Policy(mask="110101")])

    def drawn(own: Any, number: int) -> Any:
        return latents(kind, own, number, **said)

    expected = dict[tuple[int, int], Any]()
    for policy in ladder:
        with budcache.applied(pipe, policy):
            expected |= {(policy.budget, number): drawn(pipe, number) for number in range(2)}

    def serve(thread: int) -> int:
        chance, own = random.Random(f"{seed} {thread}"), type(pipe)(**pipe.components)
        own.set_progress_bar_config(disable=True)
        switched = 0
        with budcache.applied(own, ladder, budget=2) as handle:
            for _ in range(count // THREADS):
                budget, number = chance.choice(ladder.budgets), chance.randrange(2)
                switched += budget != handle.policy.budget
                handle.use(budget=budget)
                found = drawn(own, number)
                require(torch.equal(found, expected[budget, number]), f"thread {thread} has another picture")
            require(handle.stats().runs == count // THREADS, "a run was counted twice or not at all")
        return switched

    switched = at_once(serve, THREADS)
    for found in switched:
        if isinstance(found, BaseException):
            raise found
    outcomes = {"pictures": 0, "sentences": 0}
    with budcache.applied(pipe, ladder, budget=3):
        for _ in range(max(1, count // MISUSE // 2)):
            for found in at_once(lambda thread: drawn(pipe, 0), 2):
                if isinstance(found, BaseException):
                    ours = isinstance(found, budcache.PipelineError) and "\n" not in str(found)
                    require(ours, f"one pipeline in two threads raises {found!r}")
                    outcomes["sentences"] += 1
                else:
                    require(torch.equal(found, expected[3, 0]), "one pipeline in two threads draws another picture")
                    outcomes["pictures"] += 1
        require(torch.equal(drawn(pipe, 0), expected[3, 0]), "after two threads the pipeline draws another picture")
    runs = count // THREADS * THREADS
    return {"runs": runs, "threads": THREADS, "budgets_switched": sum(switched), "misused": outcomes}


def at_once(work: Callable[[int], Any], count: int) -> list[Any]:
    """What each of some threads returned or raised, all of them let go at the same moment."""
    barrier, found = threading.Barrier(count), [None] * count

    def run(number: int) -> None:
        barrier.wait()
        try:
            found[number] = work(number)
        except BaseException as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("threads", __doc__, soak, 10_000)
