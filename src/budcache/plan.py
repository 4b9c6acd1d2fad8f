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
from budcache.rows import LOOKED_AT, Features, Row

__all__ = ["Blend", "Moves", "Plan", "Stretch", "own_levels"]

# Numbers are floats. Where gradients are wanted (Algorithm 3) tensors take their place: levels are then a tensor of
# shape [K + 1], and each blend one of shape [outputs].
Numbers: TypeAlias = Any
Blend: TypeAlias = "Sequence[float] | Numbers"
Moves: TypeAlias = Sequence[tuple[float, float]]


SAME = 1e-5  # relative: nearer levels are the same, in whatever number format they were kept


def own_levels(policy: Policy, levels: Sequence[float]) -> tuple[float, ...]:
    """A policy's own noise levels, for a run whose pipeline would have some levels itself.

    They are as they stand in the policy where the pipeline has the levels that it was made with. At another size some
    pipelines have others; then the policy's are moved as the pipeline's were, each between its neighbours.
    """
    assert policy.sigmas is not None
    made = policy.origin.levels if policy.origin is not None else ()
    if len(made) != len(levels) or all(abs(a - b) <= SAME * made[0] for a, b in zip(made, levels, strict=True)):
        return policy.sigmas
    return tuple(_moved(sigma, made, levels) for sigma in policy.sigmas)


def _moved(sigma: float, made: Sequence[float], levels: Sequence[float]) -> float:
    """Where a level lies among others, if those it lay among have moved there; all fall."""
    k = min(max(sum(level >= sigma for level in made), 1), len(made) - 1)
    above, below = made[k - 1], made[k]
    share = (sigma - below) / ((above - below) or 1.0)  # the last two may be equal
    return levels[k] + share * (levels[k - 1] - levels[k])


@dataclass(frozen=True)
class Stretch:
    """From a computed step to the next one: with what to go on.

    Args:
        step: the computed step.
        end: the step at which the model is computed next, or at which the run ends.
        blend: weights of the newest output, of the one before it, and so on; their sum is what the solver goes on
            with. None repeats the newest output as it is (plain reuse).
        noise: the weight of the initial noise. With one, the stretch is a row (F13) and is made in one go, without a
            solver: `x_end = keep x_step + push (sum_j blend_j v_j + sum_j branch_j c_j) + noise x_0`.
        branch: weights of the conditional branch's outputs c_j (F12).
        features: how the weights of a row depend on the sample (F11).
        keep, push: how a first-order step of the solver leads from one end to the other; see `on`.
    """

    step: int
    end: int
    blend: Blend | None = None
    noise: float | None = None
    branch: Blend = ()
    features: Features | None = None
    keep: float = 1.0
    push: float = 0.0

    @classmethod
    def of(cls, step: int, end: int, row: Row) -> Stretch:
        """A stretch that goes by a row."""
        return cls(step, end, row.outputs, row.noise, row.branch, row.features)

    @property
    def row(self) -> Row:
        """The row that it goes by."""
        assert self.blend is not None and self.noise is not None
        return Row(outputs=tuple(self.blend), branch=tuple(self.branch), noise=self.noise, features=self.features)

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
    def of(
        cls,
        policy: Policy,
        levels: Sequence[float] | Numbers,
        begin: int = 0,
        end: int | None = None,
        guided: bool = False,
    ) -> Plan:
        """What a policy means for a run from step `begin` to step `end` on some levels.

        With `guided` the conditional branch's outputs are known apart, and the policy's rows for that are taken if it
        has some.

        The first step of a run is computed even if the mask reuses it: there is nothing to reuse yet. A blend that
        looks back before the start, or belongs to another stretch, is left out; so are all rows where a run starts
        midway: its noise is another one.
        """
        steps = policy.steps
        end = steps if end is None else end
        if not 0 <= begin < end <= steps:
            raise PolicyError(f"a run from step {begin} to {end} does not fit a policy of {steps} steps.")
        computed = [k for k in range(begin, end) if policy.mask[k] or k == begin]
        weights = dict(zip(policy.mask.computed, policy.weights or (), strict=False))
        rows = (policy.guided if guided else None) or policy.rows
        row_of = dict(zip(policy.mask.computed, rows or (), strict=False))
        stretches, left_out = [], 0
        for place, (step, stop) in enumerate(zip(computed, (*computed[1:], end), strict=True)):
            blend, row = weights.get(step), row_of.get(step)
            at_hand = place + 1 - (not policy.mask[begin])  # outputs that a fit of the whole run has had, too
            if row is not None and not begin:
                stretches.append(Stretch.of(step, stop, row))
            elif row is None and (blend is None or len(blend) <= at_hand):
                stretches.append(Stretch(step, stop, blend))
            else:
                stretches.append(Stretch(step, stop))
                left_out += 1
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
        """How many outputs the longest blend needs; what a row knows of the sample it reads off the newest three."""
        needed = [len(stretch.blend) for stretch in self.stretches if stretch.blend is not None]
        needed += [len(stretch.branch) for stretch in self.stretches]
        needed += [LOOKED_AT for stretch in self.stretches if stretch.features is not None]
        return max(needed, default=1) or 1

    def __iter__(self) -> Iterator[Stretch]:
        return iter(self.stretches)
