"""Rows: how a fitted policy goes on from a computed step to the next one, in one go and without a solver (F11 to F13).

    x_end = keep x + push (sum_j outputs_j v_j + sum_j branch_j c_j) + noise x_0

v_j are the outputs so far, newest first, guidance included; c_j those of the conditional branch alone; x_0 the initial
noise. `keep` and `push` come from the noise levels of the run (see `plan.Stretch`). With `features` the weights depend
on the sample: each is `weight + sum_f slope_f phi_f`, with phi what the outputs at hand look like.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from budcache.storage.schema import Number, Numbers, Value

__all__ = ["FEATURES", "LOOKED_AT", "MAX_BLEND", "Features", "Row"]

MAX_BLEND = 128  # outputs that one row may look back on
FEATURES = 3  # what is known of a sample; see `numerics.features`
LOOKED_AT = 3  # outputs that they are read off

Three = Annotated[tuple[Number, ...], Field(min_length=FEATURES, max_length=FEATURES, fail_fast=True)]


class Features(Value):
    """How a row's weights depend on the sample.

    Args:
        middle, spread: what brings each feature to mean 0 and deviation 1 on the samples that it was fitted on.
        slopes: for each weight of the row (outputs, branch, noise, in this order) one number per feature.
    """

    middle: Three
    spread: Three
    slopes: Annotated[tuple[Three, ...], Field(max_length=2 * MAX_BLEND + 1, fail_fast=True)]

    def _check(self) -> None:
        for value in self.spread:
            if not value > 0:
                raise ValueError(f"the spread of a feature is {value}, but it has to be above 0")


class Row(Value):
    """The weights of one stretch.

    Args:
        outputs: of the newest output, of the one before it, and so on.
        branch: likewise of the conditional branch's outputs, for pipelines that run guidance as two branches.
        noise: of the initial noise.
        features: how the weights depend on the sample; None, they do not.
    """

    outputs: Annotated[Numbers, Field(min_length=1, max_length=MAX_BLEND)]
    branch: Annotated[Numbers, Field(max_length=MAX_BLEND)] = ()
    noise: Number = 0.0
    features: Features | None = None

    @model_serializer(mode="wrap")
    def _without_blanks(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value not in (None, [], ())}

    def _check(self) -> None:
        if self.features is not None and len(self.features.slopes) != len(self.weights):
            raise ValueError(
                f"a row of {len(self.weights)} weights needs as many slopes, got {len(self.features.slopes)}"
            )

    @property
    def weights(self) -> tuple[float, ...]:
        """All weights in one list: outputs, branch, noise."""
        return (*self.outputs, *self.branch, self.noise)

    def with_weights(self, weights: tuple[float, ...]) -> Row:
        """The same row with other weights, in the order of `weights`."""
        outputs = len(self.outputs)
        update = {"outputs": weights[:outputs], "branch": weights[outputs:-1], "noise": weights[-1]}
        return self.model_copy(update=update)
