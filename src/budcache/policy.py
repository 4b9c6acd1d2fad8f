"""Policies and ladders: what a search finds, as small versioned JSON files.

A file is data, never code: reading one is validation, and every refusal is one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    Strict,
    field_validator,
    model_serializer,
    model_validator,
)

from budcache.elsewhere import Elsewhere
from budcache.errors import PolicyError
from budcache.mask import MAX_STEPS
from budcache.provenance import Origin, Quality, Refined, Searched
from budcache.rows import MAX_BLEND, Row
from budcache.storage.files import write_json
from budcache.storage.schema import MaskField, Number, Numbers, Value
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.chosen import from_pretrained, load_ladder, load_policy
    from budcache.hub.publishing import push

__all__ = ["FORMAT_VERSION", "Ladder", "Origin", "Policy", "Quality", "Refined", "Reuse", "Searched"]

FORMAT_VERSION = 2

Reuse: TypeAlias = Literal["output", "residual"]


class Policy(Value):
    """Which steps to compute, what to reuse between them, and on which noise levels.

    Args:
        mask: K decisions; a `Mask` or text such as `"1011"`.
        reuse: "output" repeats the model's last output (equation 2), "residual" repeats the change
            that the transformer's blocks made, with fresh embedding and head (the authors' code).
        sigmas: K + 1 effective noise levels, falling, or None for the pipeline's own.
        weights: for each computed step, the weights of the newest output and of those before it; the solver goes on
            with their sum where plain reuse would repeat the newest one (F6).
        rows: for each computed step a row over all that is at hand, carried out in one go, without a solver (F13).
        guided: likewise where the conditional branch's outputs are known apart (F12). Where they are not, the policy
            goes by its rows or weights.
        refined: what was done to the policy after its mask was found.
    """

    kind: Literal["policy"] = "policy"
    version: Annotated[int, Strict()] = FORMAT_VERSION
    mask: MaskField
    reuse: Reuse = "output"
    sigmas: Annotated[tuple[Number, ...], Field(max_length=MAX_STEPS + 1, fail_fast=True)] | None = None
    weights: Annotated[tuple[Numbers, ...], Field(max_length=MAX_STEPS, fail_fast=True)] | None = None
    rows: Annotated[tuple[Row, ...], Field(max_length=MAX_STEPS, fail_fast=True)] | None = None
    guided: Annotated[tuple[Row, ...], Field(max_length=MAX_STEPS, fail_fast=True)] | None = None
    origin: Origin | None = None
    quality: Quality | None = None
    refined: Annotated[tuple[Refined, ...], Field(max_length=64, fail_fast=True)] = ()

    @model_serializer(mode="wrap")
    def _without_blanks(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        if not self.refined:
            data.pop("refined", None)
        return data

    @model_validator(mode="before")
    @classmethod
    def _from_version_1(cls, data: Any) -> Any:
        """Version 1 had a field that nothing ever filled, and no uncertainty."""
        version = data.get("version") if isinstance(data, dict) else None
        if type(version) is not int or version != 1:  # True and 1.0 equal 1, but are no versions
            return data
        quality = data.get("quality")
        if isinstance(quality, dict):
            quality = {name: value for name, value in quality.items() if name != "ssim"}
        return data | {"version": FORMAT_VERSION} | ({"quality": quality} if quality is not None else {})

    @field_validator("version")
    @classmethod
    def _known_version(cls, version: int) -> int:
        if version > FORMAT_VERSION:
            raise ValueError(
                f"the file has format version {quote(version)}, this budcache reads up to {FORMAT_VERSION}; "
                "upgrade budcache"
            )
        if version < 1:
            raise ValueError(f"there is no format version {quote(version)}; versions begin at 1")
        return version

    def _check(self) -> None:
        steps = len(self.mask)
        if self.sigmas is not None:
            if len(self.sigmas) != steps + 1:
                raise ValueError(
                    f"{steps} steps need {steps + 1} sigmas, got {len(self.sigmas)}; "
                    "the last is the noise level after the last step, usually 0.0"
                )
            _check_falling("sigmas", self.sigmas)
        if self.origin is not None and self.origin.levels:
            levels = self.origin.levels
            if len(levels) != steps + 1:
                raise ValueError(f"{steps} steps have {steps + 1} levels, but origin.levels has {len(levels)}")
            # Schedulers that know whole timesteps only may end with twice the same; Mochi's counts the other way.
            if self.sigmas is not None or not all(here < there for here, there in pairwise(levels)):
                _check_falling("origin.levels", levels[:-1] if levels[-1] == levels[-2] else levels)
        if self.weights is not None:
            self._check_rows("weights", [len(row) for row in self.weights])
        if self.rows is not None:
            self._check_rows("rows", [len(row.outputs) for row in self.rows])
        if self.guided is not None:
            self._check_rows("guided", [max(len(row.outputs), len(row.branch)) for row in self.guided])
        if self.weights is not None and self.rows is not None:
            raise ValueError("a policy goes on with weights or with rows, not with both; remove one of them")
        if any(row.branch for row in self.rows or ()):
            raise ValueError("rows have weights of a branch, which belong into 'guided'; move them there")
        if self.guided is not None and not self.is_blended:
            raise ValueError("'guided' needs 'rows' or 'weights' for runs whose branches are not known apart; add them")

    def _check_rows(self, name: str, lengths: Sequence[int]) -> None:
        """One row a computed step, none longer than there are outputs."""
        if self.reuse != "output":
            raise ValueError(f'{name} need reuse "output"; remove the {name} or change reuse')
        if len(lengths) != self.budget:
            what = "rows of weights" if name == "weights" else name
            raise ValueError(f"{self.budget} computed steps need {self.budget} {what}, one a step, got {len(lengths)}")
        for place, values in enumerate(lengths):
            if not 1 <= values <= min(place + 1, MAX_BLEND):
                raise ValueError(
                    f"{name}[{place}] has {values} values, but computed step {place} has "
                    f"1 to {min(place + 1, MAX_BLEND)} outputs to blend"
                )

    # Of what it does alone: where it came from holds dictionaries, which have no hash. Equal policies do the same.
    def __hash__(self) -> int:
        return hash(self.moving_parts)

    @property
    def budget(self) -> int:
        """B, model calls per sample."""
        return self.mask.budget

    @property
    def steps(self) -> int:
        """K, steps of the full run."""
        return len(self.mask)

    @property
    def is_blended(self) -> bool:
        """Whether reuse was fitted: what follows a computed step is a blend."""
        return self.weights is not None or self.rows is not None

    @property
    def moving_parts(self) -> tuple[Any, ...]:
        """What the result of a run depends on."""
        return self.mask, self.reuse, self.weights, self.rows, self.guided, self.sigmas

    @property
    def reuse_text(self) -> str:
        """What reused steps repeat, for a person to read."""
        if not self.is_blended:
            return self.reuse
        if self.rows is None:
            return f"blend {max(map(len, self.weights or ()))}" + (" g" if self.guided else "")
        best = self.guided or self.rows
        marks = "+" + " g" * bool(self.guided) + " f" * any(row.features for row in best)
        return f"blend {max(len(row.outputs) for row in best)}{marks}"

    def __str__(self) -> str:
        own = "" if self.sigmas is None else ", own sigmas"
        psnr = self.quality.text if self.quality is not None else None
        return f"{self.budget} of {self.steps} calls  {self.mask}  {self.reuse_text}{own}{f', {psnr}' if psnr else ''}"

    def __repr__(self) -> str:
        return f"<Policy {self}>"

    def _repr_html_(self) -> str:
        from budcache.notebook import table

        return table([self])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the policy as JSON; the file is replaced whole or not at all."""
        return write_json(path, self.model_dump(mode="json", exclude_none=True))

    if TYPE_CHECKING:
        load = staticmethod(load_policy)
    else:
        load = Elsewhere("budcache.chosen", "load_policy")


class Ladder(Value):
    """The policies of several budgets of one model: `ladder[8]` is the rung of eight calls."""

    kind: Literal["ladder"] = "ladder"
    version: Annotated[int, Strict()] = FORMAT_VERSION
    rungs: Annotated[tuple[Policy, ...], Field(min_length=1, max_length=MAX_STEPS, fail_fast=True)]
    _searched: Searched | None = PrivateAttr(default=None)

    _from_version_1 = model_validator(mode="before")(Policy._from_version_1.__func__)
    _known_version = field_validator("version")(Policy._known_version.__func__)  # type: ignore[attr-defined]

    @property
    def searched(self) -> Searched | None:
        """How the ladder came about, where it comes straight from a search; a file does not tell."""
        return self._searched

    def told(self, searched: Searched) -> Ladder:
        """The same ladder, which knows how it came about."""
        self._searched = searched
        return self

    # How it came about is no part of what it is.
    def __eq__(self, other: object) -> bool:
        return self.rungs == other.rungs if isinstance(other, Ladder) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.rungs)

    def _check(self) -> None:
        first = self.rungs[0]
        for below, above in pairwise(self.rungs):
            if not below.budget < above.budget:
                raise ValueError(
                    f"budgets must rise from rung to rung, but {below.budget} is followed by {above.budget}"
                )
        for rung in self.rungs:
            if rung.steps != first.steps:
                raise ValueError(f"all rungs must have the same steps, but there are {first.steps} and {rung.steps}")

    @classmethod
    def of(cls, policies: Iterable[Policy]) -> Ladder:
        """A ladder of the given policies, in any order."""
        return cls(rungs=tuple(sorted(policies, key=lambda policy: policy.budget)))

    @property
    def budgets(self) -> tuple[int, ...]:
        """The budgets there are, rising."""
        return tuple(rung.budget for rung in self.rungs)

    @property
    def budgets_text(self) -> str:
        """The budgets for a person to read: `4, 5, 6`; the middle of a long list is left out."""
        shown = [str(budget) for budget in self.budgets]
        return ", ".join(shown if len(shown) <= 24 else [*shown[:12], "...", *shown[-3:]])

    @property
    def steps(self) -> int:
        """K, steps of the full run."""
        return self.rungs[0].steps

    def difference(self, other: Ladder) -> str | None:
        """Why two ladders cannot become one, as a clause: another model or other settings; None if they can."""
        if other.steps != self.steps:
            return f"steps is {self.steps} in one and {other.steps} in the other"
        for mine in self.rungs:
            for theirs in other.rungs:
                if mine.reuse != theirs.reuse:
                    return f"reuse is {quote(mine.reuse)} in one and {quote(theirs.reuse)} in the other"
                differs = mine.origin and theirs.origin and mine.origin.difference(theirs.origin)
                if differs:
                    return differs
        return None

    def merged(self, other: Ladder) -> Ladder:
        """This ladder with another's rungs, which replace those of the same budget.

        Rungs of another model or other settings are refused: one ladder is for one pipeline.
        """
        differs = self.difference(other)
        if differs:
            raise PolicyError(f"these ladders cannot become one: {differs}. Keep them in two files.")
        return Ladder.of(({rung.budget: rung for rung in (*self.rungs, *other.rungs)}).values())

    def __str__(self) -> str:
        return "\n".join(map(str, self.rungs))

    def __repr__(self) -> str:
        model = self.rungs[0].origin.model if self.rungs[0].origin else None
        return f"<Ladder of {self.budgets_text} of {self.steps} calls{f' for {quote(model)}' if model else ''}>"

    def _repr_html_(self) -> str:
        from budcache.notebook import table

        return table(self.rungs)

    def __getitem__(self, budget: int) -> Policy:
        for rung in self.rungs:
            if rung.budget == budget:
                return rung
        below = [b for b in self.budgets if b < budget]
        hint = f"The nearest below has {below[-1]}." if below else "Choose one of them."
        raise PolicyError(f"this ladder has no rung of {budget} calls, only of {self.budgets_text}. {hint}")

    def at_most(self, budget: int) -> Policy:
        """The largest rung that costs no more than `budget` calls."""
        affordable = [rung for rung in self.rungs if rung.budget <= budget]
        if not affordable:
            raise PolicyError(
                f"no rung costs at most {budget} calls; the smallest costs {self.budgets[0]}. "
                f"Raise the budget to {self.budgets[0]}, or search smaller budgets."
            )
        return affordable[-1]

    def __iter__(self) -> Iterator[Policy]:  # type: ignore[override]
        return iter(self.rungs)

    def __len__(self) -> int:
        return len(self.rungs)

    def __contains__(self, budget: object) -> bool:
        return budget in self.budgets

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the ladder as JSON; the file is replaced whole or not at all."""
        return write_json(path, self.model_dump(mode="json", exclude_none=True))

    if TYPE_CHECKING:
        load = staticmethod(load_ladder)
        from_pretrained = staticmethod(from_pretrained)
        push_to_hub = push
    else:
        load = Elsewhere("budcache.chosen", "load_ladder")
        from_pretrained = Elsewhere("budcache.chosen", "from_pretrained")
        push_to_hub = Elsewhere("budcache.hub.publishing", "push", bound=True)


def _check_falling(name: str, levels: Sequence[float]) -> None:
    for k, (here, there) in enumerate(pairwise(levels)):
        if not here > there:
            raise ValueError(f"{name} must fall at every step, but {name}[{k}] = {here} is followed by {there}")
    if levels[-1] < 0:
        raise ValueError(f"{name} end at {levels[-1]}, below zero; end them at 0.0")
