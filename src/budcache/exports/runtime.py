"""Policies carried out without budcache: what every exported sampler has in it, word for word.

Nothing but the standard library is imported here, and arithmetic is left to the arrays that come in (torch's or
mlx's), so that the text below the mark can be copied into a node of ComfyUI or a scheduler of another library.
"""

from __future__ import annotations

# What stands below this mark is copied.
import json
import math
from typing import Any


def read_policy(text: str, budget: int = 0) -> dict[str, Any]:
    """A policy from the text of a file of budcache; of a ladder, the rung of so many calls."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("this is not the text of a budcache policy: it is not JSON. Paste the whole file.") from None
    rungs = found.get("rungs", [found]) if isinstance(found, dict) else []
    policies = {mask.count("1"): rung for rung in rungs if (mask := _mask(rung))}
    if not policies:
        raise ValueError("this is not the text of a budcache policy: it has no mask. Paste the whole file.")
    if budget not in policies and (budget or len(policies) > 1):
        raise ValueError(f"there is no policy of {budget} calls, only of {sorted(policies)}. Choose one of them.")
    policy: dict[str, Any] = policies[budget or next(iter(policies))]
    if policy.get("reuse", "output") != "output":
        raise ValueError("this policy reuses residuals, which happens in the model, not here. Export it to magcache.")
    if len(rows_of(policy)) != policy["mask"].count("1"):
        raise ValueError("this policy has another number of rows than of calls. Export it again.")
    return policy


def _mask(rung: Any) -> str:
    mask = rung.get("mask") if isinstance(rung, dict) else None
    return mask if isinstance(mask, str) and mask[:1] == "1" and set(mask) <= {"0", "1"} else ""


def stretches_of(policy: dict[str, Any]) -> list[tuple[int, int]]:
    """From each computed step to the next one, or to the end."""
    starts = [k for k, bit in enumerate(policy["mask"]) if bit == "1"]
    return list(zip(starts, [*starts[1:], len(policy["mask"])], strict=True))


def levels_of(policy: dict[str, Any], full: Any = None) -> list[float]:
    """The noise levels of the computed steps, and the last: the policy's own, or out of the K + 1 of a full run."""
    levels = own_levels(policy, full) if policy.get("sigmas") is not None else full
    steps = len(policy["mask"])
    if levels is None or len(levels) != steps + 1:
        has = "none" if levels is None else len(levels)
        raise ValueError(f"{steps} steps need {steps + 1} noise levels, there are {has}. Give those of the full run.")
    return [float(levels[k]) for k, _ in stretches_of(policy)] + [float(levels[-1])]


def own_levels(policy: dict[str, Any], full: Any = None) -> list[float]:
    """The policy's own noise levels. Where a full run has others than those that it was made with, as at another size,
    they are moved along: each keeps its place between its neighbours."""
    origin, own = policy.get("origin"), policy["sigmas"]
    made: list[float] = (origin.get("levels") if isinstance(origin, dict) else None) or []
    full = [] if full is None else [float(level) for level in full]
    if not made or len(made) != len(full) or max(abs(a - b) for a, b in zip(made, full, strict=True)) <= 1e-5 * made[0]:
        return list(own)
    return [_moved(level, made, full) for level in own]


def _moved(level: float, made: list[float], full: list[float]) -> float:
    k = min(max(sum(each >= level for each in made), 1), len(made) - 1)
    share = (level - made[k]) / ((made[k - 1] - made[k]) or 1.0)
    return full[k] + share * (full[k - 1] - full[k])


def rows_of(policy: dict[str, Any]) -> list[dict[str, Any]]:
    """For each computed step the weights of what is at hand there."""
    rows: list[dict[str, Any]] = policy.get("rows") or [{"outputs": row} for row in policy.get("weights") or ()]
    return rows or [{"outputs": [1.0]}] * policy["mask"].count("1")


class Runner:
    """One run along a policy's rows: `x_end = keep x + push sum_j weight_j v_j + noise x_0`.

    Args:
        policy: as `read_policy` gives it.
        exact: an array in the number format to add up in, float32 or finer.
        each: one number per sample as an array that multiplies another; not needed for single samples.
    """

    def __init__(self, policy: dict[str, Any], exact: Any, each: Any = None) -> None:
        self.rows, self.exact, self.each = rows_of(policy), exact, each
        self.outputs: list[Any] = []
        self.noise: Any = None

    def step(self, x: Any, v: Any, push: float, keep: float = 1.0) -> Any:
        """From a computed step, with the model's output there, to the next one."""
        row = self.rows[len(self.outputs)]
        x = self.exact(x)
        if self.noise is None:
            self.noise = 1 * x  # a copy: some pipelines write their next sample into the same array
        self.outputs.insert(0, self.exact(v))
        weights = [*row["outputs"], row.get("noise", 0.0)]
        if row.get("features"):
            weights = self._of_each_sample(weights, row["features"])
        total = weights[0] * self.outputs[0]
        for weight, output in zip(weights[1:-1], self.outputs[1:], strict=False):
            total = total + weight * output
        return keep * x + push * total + weights[-1] * self.noise

    def _of_each_sample(self, weights: list[float], features: dict[str, Any]) -> list[Any]:
        """Weights that look at the sample: each is `weight + sum_f slope_f phi_f`."""
        samples = range(len(self.outputs[0]))
        found = [_looks([v[i] for v in self.outputs[:3]]) for i in samples]
        bounds = list(zip(features["middle"], features["spread"], strict=True))
        known = [[max(-3.0, min(3.0, (f - m) / s)) for f, (m, s) in zip(each, bounds, strict=True)] for each in found]
        own = [
            [weight + sum(a * b for a, b in zip(slopes, each, strict=True)) for each in known]
            for weight, slopes in zip(weights, features["slopes"], strict=True)
        ]
        return [weight[0] if len(weight) == 1 else self.each(weight, self.outputs[0]) for weight in own]


def _looks(newest: list[Any]) -> list[float]:
    """What the newest three outputs of a sample look like: log |v0 - v1| / |v0|, log |v0| / |v1|, and how they turn."""
    if len(newest) < 2:
        return [0.0, 0.0, 0.0]
    turn = newest[0] - newest[1]
    found = [math.log(_norm(turn) / _norm(newest[0])), math.log(_norm(newest[0]) / _norm(newest[1])), 0.0]
    if len(newest) > 2:
        before = newest[1] - newest[2]
        found[2] = float((turn * before).sum()) / (_norm(turn) * _norm(before))
    return found


def _norm(v: Any) -> float:
    return max(math.sqrt(float((v * v).sum())), 1e-12)
