"""A method at a budget, ready for a pipeline: as it is, under a policy, or with a cache or another solver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from budcache.errors import BudcacheError
from budcache.mask import Computed, Mask
from budcache.policy import Policy

__all__ = ["Ready", "cached", "following", "plain"]


@dataclass(frozen=True)
class Ready:
    """A method at a budget: `running` puts it on the pipeline, and what it gives tells what the last run computed."""

    running: Callable[[], AbstractContextManager[Callable[[], Computed]]]
    steps: int  # to ask the pipeline for
    knob: str | None = None
    learned_on: int | None = None  # samples that it was searched, fitted or tuned on
    learning_calls: int | None = None  # sample-calls that this took
    expected: float | None = None  # calls on calibration samples, where they may be others on others
    whole: bool = False  # its calls are of the whole network, and between them it takes nothing of it


def plain(pipe: Any, steps: int) -> Ready:
    """The pipeline as it is, with so many steps; image-to-image may start midway and make fewer."""

    @contextmanager
    def told() -> Iterator[Callable[[], Computed]]:
        yield lambda: Computed.of(Mask.full(max(1, min(int(pipe.num_timesteps), steps))))

    @contextmanager
    def counted() -> Iterator[Callable[[], Computed]]:
        from budcache.pipeline.steps import followed

        count = _Count()
        with followed(pipe, steps, count):
            yield lambda: Computed.of(Mask.full(count.steps))

    # Most pipelines tell how many steps they ran; modular ones do not.
    return Ready(told if hasattr(type(pipe), "num_timesteps") else counted, steps, whole=True)


def following(pipe: Any, policy: Policy) -> Ready:
    """The pipeline under a policy."""
    from budcache.pipeline import applied

    @contextmanager
    def running() -> Iterator[Callable[[], Computed]]:
        with applied(pipe, policy) as handle:
            before = handle.stats()

            def last() -> Computed:
                nonlocal before
                now = handle.stats()
                calls, reused, before = now.calls - before.calls, now.reused - before.reused, now
                # A run that starts midway (image-to-image) has the mask's last steps, and computes its first one.
                mask = Mask((True, *policy.mask.bits[policy.steps - calls - reused + 1 :]))
                if calls != mask.budget:  # a policy promises its calls: do not draw what breaks that
                    raise BudcacheError(
                        f"a policy of {mask.budget} calls made {calls} of them. Please report this as a bug."
                    )
                return Computed.of(mask)

            yield last

    origin, whole = policy.origin, policy.reuse == "output"
    if origin is None:
        return Ready(running, policy.steps, whole=whole)
    return Ready(running, policy.steps, learned_on=origin.prompts, learning_calls=origin.calls, whole=whole)


def cached(pipe: Any, method: Any, steps: int, **facts: Any) -> Ready:
    """The pipeline with another method's cache, or its solver; `facts` are the other fields of `Ready`."""
    from budcache.baselines import caching

    @contextmanager
    def running() -> Iterator[Callable[[], Computed]]:
        with caching(pipe, method, steps) as runs:
            yield lambda: runs.finished[-1]

    return Ready(running, method.asked(steps), whole=method.whole, **facts)


class _Count:
    """Counts the steps of a run: a `pipeline.steps.Listener`."""

    steps = 0

    def run_begins(self, sigmas: Any) -> None:
        self.steps = 0

    def step_begins(self, step: int) -> None:
        pass

    def step_ends(self, step: int, last: bool) -> None:
        self.steps += 1

    def run_ends(self) -> None:
        pass
