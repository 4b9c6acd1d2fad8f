"""The plan: what a policy means on the noise levels of one run.

A policy says which steps to compute and how to go on between them. On given noise levels, from the step at which a run
starts, that becomes a plan: the levels and, for each computed step, the stretch that leads to the next one. Rollout,
fit, serving and exports carry out plans; nothing else knows what a blend is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from budcache.errors import PolicyError
from budcache.policy import Policy, Reuse

__all__ = ["Blend", "Moves", "Plan", "Stretch"]

# Numbers are floats. Where gradients are wanted (Algorithm 3) tensors take their place: levels are then a tensor of
# shape [K + 1], and each blend one of shape [outputs].
Numbers: TypeAlias = Any
Blend: TypeAlias = "Sequence[float] | Numbers"
Moves: TypeAlias = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Stretch:
    """From a computed step to the next one: with what to go on.

    Args:
        step: the computed step.
        end: the step at which the model is computed next, or at which the run ends.
        blend: weights of the newest output, of the one before it, and so on; their sum is what the solver goes on
            with. None repeats the newest output as it is (plain reuse).
        noise: the weight of the initial noise. With one, the stretch is made in one go, without a solver (F13):
            `x_end = keep x_step + push sum_j blend_j v_j + noise x_0`.
        keep, push: how a first-order step of the solver leads from one end to the other; see `on`.
    """

    step: int
    end: int
    blend: Blend | None = None
    noise: float | None = None
    keep: float = 1.0
    push: float = 0.0

    def on(self, moves: Moves) -> Stretch:
        """The same where a step k of the run is, to first order, `x_(k+1) = moves[k][0] x_k + moves[k][1] v`."""
        keep, push = 1.0, 0.0
        for a, b in moves[self.step : self.end]:
            keep, push = a * keep, a * push + b
        return replace(self, keep=keep, push=push)


@dataclass(frozen=True)
class Plan:
    """The levels of a run, and its stretches in order.

    Args:
        levels: K + 1 effective noise levels, falling.
        stretches: one for each model call.
        reuse: "output", or "residual" where reused steps run embedder and head around the remembered residual.
        plain: blends that were left out because they look back before the start; these stretches repeat the output.
    """

    levels: Sequence[float] | Numbers
    stretches: tuple[Stretch, ...]
    reuse: Reuse = "output"
    plain: int = 0

    @classmethod
    def of(cls, policy: Policy, levels: Sequence[float] | Numbers, begin: int = 0, end: int | None = None) -> Plan:
        """What a policy means for a run from step `begin` to step `end` on some levels.

        The first step of a run is computed even if the mask reuses it: there is nothing to reuse yet. A blend that
        looks back before the start, or belongs to another stretch, is left out; so are all rows with a weight of the
        noise where a run starts midway.
        """
        steps = policy.steps
        end = steps if end is None else end
        if not 0 <= begin < end <= steps:
            raise PolicyError(f"a run from step {begin} to {end} does not fit a policy of {steps} steps.")
        computed = [k for k in range(begin, end) if policy.mask[k] or k == begin]
        rows = dict(zip(policy.mask.computed, policy.weights or (), strict=False))
        noises = dict(zip(policy.mask.computed, policy.noise or (), strict=False))
        stretches, left_out = [], 0
        for place, (step, stop) in enumerate(zip(computed, (*computed[1:], end), strict=True)):
            row = rows.get(step)
            at_hand = place + 1 - (not policy.mask[begin])  # outputs that a fit of the whole run has had, too
            if row is not None and (len(row) > at_hand or (noises and begin)):
                row, left_out = None, left_out + 1
            stretches.append(Stretch(step, stop, row, None if row is None else noises.get(step)))
        levels = tuple(levels) if isinstance(levels, list) else levels
        return cls(levels, tuple(stretches), policy.reuse, left_out)

    @property
    def calls(self) -> int:
        """Model calls per sample."""
        return len(self.stretches)

    @property
    def computed(self) -> tuple[int, ...]:
        """The steps at which the model is computed."""
        return tuple(stretch.step for stretch in self.stretches)

    @property
    def begin(self) -> int:
        """The first step."""
        return self.stretches[0].step

    @property
    def end(self) -> int:
        """The step behind the last."""
        return self.stretches[-1].end

    @property
    def is_linear(self) -> bool:
        """Whether there are stretches that are made in one go."""
        return any(stretch.noise is not None for stretch in self.stretches)

    @property
    def outputs(self) -> int:
        """How many outputs the longest blend needs."""
        return max((len(stretch.blend) for stretch in self.stretches if stretch.blend is not None), default=1)

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self.stretches)
