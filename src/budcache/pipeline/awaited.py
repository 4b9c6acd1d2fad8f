"""Arguments of a pipeline's call that wait for one step by its number, and would wait for ever if it is reused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from budcache.errors import PipelineError
from budcache.policy import Policy

__all__ = ["check_awaited"]


def check_awaited(policy: Policy, call: Mapping[str, Any]) -> None:
    """Refuse a call in which something is to happen at exactly one step that the policy does not compute."""
    for what, step in _awaited(policy, call):
        if 0 <= step < policy.steps and not policy.mask[step]:
            computed = policy.mask.computed
            near = [max(k for k in computed if k < step), *[k for k in computed if k > step][:1]]
            raise PipelineError(
                f"{what} waits for step {step}, which the policy reuses, so it would wait for ever. "
                f"Let it wait for a computed step, such as {' or '.join(map(str, near))}."
            )


def _awaited(policy: Policy, call: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    callback = call.get("callback_on_step_end")
    for each in getattr(callback, "callbacks", [callback]):  # diffusers' own cut something off, by a fraction or a step
        config = getattr(each, "config", {})
        step, ratio = config.get("cutoff_step_index"), config.get("cutoff_step_ratio")
        step = int(policy.steps * ratio) if step is None and ratio is not None else step
        if step is not None:
            yield type(each).__name__, step
    if call.get("enable_temporal_reasoning"):  # ChronoEdit
        yield "num_temporal_reasoning_steps", call.get("num_temporal_reasoning_steps") or 0
