"""Eight threads at once: each serves through its own pipeline on shared networks, and policies change between runs.

They go through ladders of all kinds: blends by the solver (version 1), rows (version 2), guidance apart, residuals.
Every picture must be the one that a single thread draws. Then two threads run one and the same pipeline, served and
recorded: each gets the right picture or a sentence, nothing else, and what is recorded are runs that were made.

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
MASKS = ("100100", "110100", "110101")
BLEND, BRANCH = (1.1, 0.1, -0.2, 0.0), (0.2, -0.1, 0.05, 0.0)


def ladders() -> dict[str, Any]:
    """A ladder of each kind that can be served, of the same budgets."""
    from budcache import Ladder, Policy

    def ladder(**each: Callable[[int], Any]) -> Any:
        made = [{name: make(mask.count("1")) for name, make in each.items()} for mask in MASKS]
        return Ladder.of([Policy(mask=mask, **more) for mask, more in zip(MASKS, made, strict=True)])

    def rows(calls: int) -> Any:
        return [{"outputs": BLEND[: n + 1], "noise": 0.01 * n} for n in range(calls)]

    def guided(calls: int) -> Any:
        return [{**row, "branch": BRANCH[: n + 1]} for n, row in enumerate(rows(calls))]

    return {
        "blends": ladder(weights=lambda calls: [BLEND[: min(n, 2) + 1] for n in range(calls)]),
        "rows": ladder(rows=rows),
        "guided": ladder(rows=rows, guided=guided),
        "residual": ladder(reuse=lambda _: "residual"),
    }


def soak(seed: int, count: int) -> dict[str, Any]:
    """So many runs in all threads together."""
    sys.path[:0] = ZOO
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    here = Shared()
    found = at_once(lambda thread: here.serve(thread, random.Random(f"{seed} {thread}"), count // THREADS), THREADS)
    for each in found:
        if isinstance(each, BaseException):
            raise each
    times = max(1, count // MISUSE // 4)
    misused = {"served": here.served_by_two(times), "recorded": here.recorded_by_two(times)}
    require(here.is_bare(), "the shared networks are not what they were")
    return {
        "runs": count // THREADS * THREADS,
        "threads": THREADS,
        "switched": {name: sum(each[name] for each in found) for name in ("budget", "ladder")},
        "misused": misused,
    }


class Shared:
    """A pipeline whose networks all threads share, and what a single thread draws with it."""

    def __init__(self) -> None:
        import torch
        from helpers import flux, latents

        import budcache

        self.kind, self.pipe = flux()
        self.latents, self.equal = latents, torch.equal
        with torch.no_grad():  # a tokenizer is only for one thread at a time
            embeds, pooled, _ = self.pipe.encode_prompt(prompt="a cat", prompt_2=None, max_sequence_length=16)
            other, other_pooled, _ = self.pipe.encode_prompt(prompt="red", prompt_2=None, max_sequence_length=16)
        self.said = {"prompt": None, "prompt_embeds": embeds, "pooled_prompt_embeds": pooled}
        self.two = {"negative_prompt_embeds": other, "negative_pooled_prompt_embeds": other_pooled}
        self.two["true_cfg_scale"] = 3.0
        self.ladders = ladders()
        self.full = [self.drawn(self.pipe, "full", number) for number in range(2)]
        self.expected = dict[tuple[str, int, int], Any]()
        for name, ladder in self.ladders.items():
            for policy in ladder:
                with budcache.applied(self.pipe, policy):
                    drawn = {(name, policy.budget, number): self.drawn(self.pipe, name, number) for number in range(2)}
                self.expected |= drawn

    def drawn(self, pipe: Any, name: str, number: int) -> Any:
        """A run; only guidance apart needs two branches, which take twice as long."""
        return self.latents(self.kind, pipe, number, **self.said, **(self.two if name == "guided" else {}))

    def serve(self, thread: int, chance: random.Random, count: int) -> dict[str, int]:
        """One thread's runs; how often it changed the budget and the ladder."""
        import budcache

        own = type(self.pipe)(**self.pipe.components)
        own.set_progress_bar_config(disable=True)
        before, switched = ("rows", 2), {"budget": 0, "ladder": 0}
        with budcache.applied(own, self.ladders["rows"], budget=2) as handle:
            for _ in range(count):
                name, budget, number = chance.choice(list(self.expected))
                handle.use(self.ladders[name], budget=budget)
                switched = {"budget": switched["budget"] + (budget != before[1]),
                            "ladder": switched["ladder"] + (name != before[0])}  # fmt: skip
                before, found = (name, budget), self.drawn(own, name, number)
                same = self.equal(found, self.expected[name, budget, number])
                require(same, f"thread {thread} has another picture of {name} with {budget} calls")
            require(handle.stats().runs == count, "a run was counted twice or not at all")
        return switched

    def served_by_two(self, times: int) -> dict[str, int]:
        """Two threads on one pipeline that carries a policy."""
        import budcache

        outcomes = {"pictures": 0, "sentences": 0}
        for number in range(times):
            name = list(self.ladders)[number % len(self.ladders)]
            right = self.expected[name, 3, 0]
            with budcache.applied(self.pipe, self.ladders[name], budget=3):
                self._two(name, right, outcomes)
                require(self.equal(self.drawn(self.pipe, name, 0), right), "after two threads the picture is another")
        return outcomes

    def recorded_by_two(self, times: int) -> dict[str, int]:
        """Two threads on one pipeline that is recorded: as many runs as pictures, and none that was not made."""
        import budcache

        with budcache.recording(self.pipe) as alone:
            self.drawn(self.pipe, "full", 0)
        (known,) = alone
        outcomes = {"pictures": 0, "sentences": 0}
        for _ in range(times):
            before = outcomes["pictures"]
            with budcache.recording(self.pipe) as record:
                self._two("full", self.full[0], outcomes)
            made = [product for runs in record for product in runs.grams.products]
            require(len(made) == outcomes["pictures"] - before, "not every whole run is in the record, or more are")
            require(all((product == known.grams.products[0]).all() for product in made), "two runs mix in a record")
        return outcomes

    def _two(self, name: str, right: Any, outcomes: dict[str, int]) -> None:
        import budcache

        for found in at_once(lambda thread: self.drawn(self.pipe, name, 0), 2):
            if isinstance(found, BaseException):
                ours = isinstance(found, budcache.PipelineError) and "\n" not in str(found)
                require(ours, f"one pipeline in two threads raises {found!r}")
                outcomes["sentences"] += 1
            else:
                require(self.equal(found, right), f"one pipeline in two threads draws another picture of {name}")
                outcomes["pictures"] += 1

    def is_bare(self) -> bool:
        """Whether nothing is left on the networks, and a full run is what it was."""
        import torch

        network = self.pipe.transformer
        plain = type(network.transformer_blocks) is torch.nn.ModuleList and not network._forward_hooks
        return plain and self.equal(self.drawn(self.pipe, "full", 1), self.full[1])


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
