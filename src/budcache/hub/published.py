"""What a card's metadata says of a ladder: enough to choose one by, without downloading it."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import ConfigDict, Field, Strict

from budcache.mask import MAX_STEPS
from budcache.policy import Ladder
from budcache.provenance import RangedSetting
from budcache.storage.schema import Count, Number, Text, Value

__all__ = ["TAG", "Published", "weights_tag"]

TAG = "budcache"
RANGED: tuple[RangedSetting, ...] = get_args(RangedSetting)


class Published(Value):
    """The settings and figures of a published ladder; those of samples that differed are ranges."""

    # Cards are only looked at: what a newer version says beside is no reason to pass over the rest.
    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: Annotated[Count, Field(ge=1, le=MAX_STEPS)]
    budgets: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MAX_STEPS, fail_fast=True)]
    psnr: Annotated[tuple[Number | None, ...], Field(max_length=MAX_STEPS, fail_fast=True)] = ()  # one a budget
    used_to_fit: Annotated[bool, Strict()] = False  # whether that is of samples that were fitted: new ones do worse
    pipeline: Text | None = None
    adapters: Annotated[tuple[Text, ...], Field(max_length=64, fail_fast=True)] = ()
    height: tuple[Number, Number] | None = None
    width: tuple[Number, Number] | None = None
    frames: tuple[Number, Number] | None = None
    guidance: tuple[Number, Number] | None = None
    true_guidance: tuple[Number, Number] | None = None

    def _check(self) -> None:
        if len(self.psnr) not in (0, len(self.budgets)):
            raise ValueError(f"{len(self.budgets)} budgets have {len(self.psnr)} figures of quality; give one for each")

    @classmethod
    def of(cls, ladder: Ladder) -> Published:
        """What is to be said of a ladder."""
        origin = ladder.rungs[0].origin
        measured = {rung.budget: rung.quality for rung in ladder if rung.quality and rung.quality.psnr is not None}
        figures = [round(measured[b].psnr or 0.0, 2) if b in measured else None for b in ladder.budgets]
        known: dict[str, Any] = {}
        if origin is not None:
            known = {"pipeline": origin.pipeline, "adapters": origin.adapters}
            for name in RANGED:
                value = getattr(origin, name)
                one = None if value is None else (float(value), float(value))
                known[name] = origin.ranges.get(name, one)
        known |= {"psnr": tuple(figures) if measured else ()}
        known |= {"used_to_fit": any(quality.used_to_fit for quality in measured.values())}
        return cls(steps=ladder.steps, budgets=ladder.budgets, **known)

    @property
    def quality(self) -> str | None:
        """The PSNR of the rungs for a table; of samples that were fitted a bound, as `Quality.short` has it."""
        figures = [figure for figure in self.psnr if figure is not None]
        ends = " to ".join(f"{end:.1f}" for end in dict.fromkeys((min(figures), max(figures)))) if figures else ""
        return (f"< {ends}" if self.used_to_fit else ends) or None

    def data(self) -> dict[str, Any]:
        """As it is written into a card: blanks left out, and one number where both ends of a range are equal."""
        found = {name: value for name, value in self.model_dump(mode="json").items() if value not in (None, [], False)}
        for name in RANGED:
            if name in found:
                low, high = (int(end) if end == int(end) else end for end in found[name])
                found[name] = low if low == high else [low, high]
        return found

    @classmethod
    def read(cls, data: Any) -> Published:
        """What somebody's card says; `PolicyError` if that is not what a card says."""
        if isinstance(data, dict):
            data = dict(data)
            for name in RANGED:
                value = data.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool):
                    value = [value, value]
                if isinstance(value, list):  # YAML has whole numbers for these, too
                    data[name] = [float(end) if type(end) is int and abs(end) < 10**9 else end for end in value]
        return cls.model_validate(data)


def weights_tag(weights: str) -> str:
    """The tag by which ladders for exactly these weights are found; a number by itself could be misread in YAML."""
    return f"{TAG}-{weights}"
