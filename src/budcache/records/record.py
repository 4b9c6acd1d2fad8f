"""Records: full runs of a pipeline, kept as inner products; small files that add up over days and machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from budcache.errors import FileError, PolicyError, RecordError, SearchError
from budcache.options import check_budgets, one_or_several, whole
from budcache.policy import Ladder, Origin, Policy
from budcache.records import LIKELIEST
from budcache.records.gram import Array, Grams
from budcache.storage.files import replacing
from budcache.wording import quote, several

__all__ = ["VERSION", "Record", "Runs"]

VERSION = 1
MAX_BYTES = 1_000_000_000
MAX_STEPS = 400  # an inner product for each pair of steps: beyond that a record is no longer small
BLOCKS = ["latents", "outputs"]  # what the rows of a matrix are, in order; later versions may know more
# What has to be the same for runs to add up; the model may lie in another folder elsewhere.
SETTINGS = ("pipeline", "denoiser", "weights", "adapters", "scheduler", "scheduler_settings", "guidance")
NEAR = 1e-4  # levels that differ by less, relative to the first, are the same


@dataclass(frozen=True)
class Runs:
    """The full runs of one number of steps and one set of settings."""

    origin: Origin
    grams: Grams

    @property
    def steps(self) -> int:
        """K."""
        return self.grams.steps

    @property
    def samples(self) -> int:
        """How many runs there are."""
        return self.grams.samples

    def __str__(self) -> str:
        """What they are, in one line; runs of other sizes have other noise levels, so one of these is named, too."""
        origin, middle = self.origin, float(self.grams.levels[self.steps // 2])
        guided = None if origin.guidance is None else f"guidance {origin.guidance:g}"
        facts = filter(None, (origin.model, origin.scheduler, guided, f"noise level {middle:.5g} halfway"))
        return f"{several(self.samples, 'run')} of {several(self.steps, 'step')}: {', '.join(facts)}"

    def difference(self, origin: Origin, levels: Array | None = None) -> str | None:
        """Why runs of as many steps do not belong to these, as a clause; None if they do, as far as is known."""
        scale = float(abs(self.grams.levels).max())
        if levels is not None and not np.allclose(self.grams.levels, levels, rtol=0, atol=NEAR * scale):
            return "the noise levels differ, as they do for pictures of another size"
        return self.origin.difference(origin, SETTINGS)


@dataclass
class Record:
    """Full runs that were recorded, those of other steps or settings kept apart."""

    groups: list[Runs] = field(default_factory=list)

    def add(self, runs: Runs) -> None:
        """Put runs with those that they belong to."""
        for number, group in enumerate(self.groups):
            if group.steps == runs.steps and group.difference(runs.origin, runs.grams.levels) is None:
                self.groups[number] = replace(group, grams=group.grams + runs.grams)
                return
        self.groups.append(runs)

    def __add__(self, other: Record) -> Record:
        if not isinstance(other, Record):
            return NotImplemented
        total = Record(list(self.groups))
        for group in other.groups:
            total.add(group)
        return total

    def __len__(self) -> int:
        return sum(group.samples for group in self.groups)

    def __iter__(self) -> Iterator[Runs]:
        return iter(self.groups)

    @property
    def summary(self) -> str:
        """What is there, for a person to read."""
        parts = []
        for steps in dict.fromkeys(group.steps for group in self.groups):
            counts = [group.samples for group in self.groups if group.steps == steps]
            kinds = f" in {len(counts)} kinds" if len(counts) > 1 else ""
            parts.append(f"{several(sum(counts), 'run')} of {several(steps, 'step')}{kinds}")
        return " and ".join(parts) or "nothing yet"

    def __repr__(self) -> str:
        return f"<Record of {self.summary}>"

    def source(self, steps: int | None = None) -> Runs:
        """The runs that a ladder comes from: those of so many steps, else of the nearest number; of these the most."""
        several_runs = [group for group in self.groups if group.samples >= 2]
        if not several_runs:
            raise RecordError(
                f"the record has {self.summary}, and policies take two runs or more of one kind, better four: one says "
                "nothing of others. Record more."
            )
        return min(several_runs, key=lambda group: (0 if steps is None else abs(group.steps - steps), -group.samples))

    def like(self, origin: Origin, steps: int, levels: Array | None = None) -> Grams:
        """The runs of the same pipeline with the same steps and settings; levels are None while they are not known."""
        reasons = []
        for group in self.groups:
            if group.steps == steps:
                reason = group.difference(origin, levels)
                if reason is None:
                    return group.grams
                reasons.append(reason)
        there = "; ".join(dict.fromkeys(reasons)) or f"it has {self.summary}, and the search is of {steps}"
        raise RecordError(
            f"the record has no runs like these: {there}. Leave it out, or record runs of the same model and settings."
        )

    def ladder(self, budgets: int | Iterable[int], *, steps: int | None = None) -> Ladder:
        """Policies from the recorded runs alone, without a single model call; `budcache fit` improves them later.

        Args:
            budgets: model calls per sample.
            steps: K of the policies; None is that of the runs. From runs of another number of steps, the nearest in
                number, they are interpolated.
        """
        from budcache.records.paths import ShortestPaths

        wanted = one_or_several(budgets)
        if steps is not None:
            check_budgets(wanted, whole("steps", steps))
        runs = self.source(steps)
        grams = runs.grams if steps in (None, runs.steps) else runs.grams.at(int(steps or 0))
        check_budgets(wanted, grams.steps)
        switch = runs.origin.switch
        if switch is not None and steps not in (None, runs.steps):
            raise RecordError(
                f"the runs are of two experts, the second from step {switch} of {runs.steps} on, and where it takes "
                f"over in {steps} steps is not known. Record runs of {steps} steps."
            )
        find = ShortestPaths.through(grams, wanted, switch=switch)
        known = {"strategy": "paths", "prompts": grams.samples, "calls": 0, "levels": grams.levels.tolist()}
        origin = runs.origin.model_copy(update=known)
        return Ladder.of(
            Policy(mask=masks[0], weights=find.stretches.blends(masks[0]), origin=origin, refined=(find.refined,))
            for masks in find(wanted, LIKELIEST).values()
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the record: matrices and settings, no pictures and no prompts. The file is replaced whole or not."""
        from safetensors.numpy import save

        arrays: dict[str, Array] = {}
        for number, group in enumerate(self.groups):
            # Products are symmetric: one half is enough.
            upper = np.triu_indices(group.grams.products.shape[1])
            arrays[f"levels.{number}"] = group.grams.levels
            arrays[f"products.{number}"] = np.ascontiguousarray(group.grams.products[:, upper[0], upper[1]])
        origins = [group.origin.model_dump(mode="json", exclude_none=True) for group in self.groups]
        header = {"kind": "record", "version": VERSION, "blocks": BLOCKS, "origins": origins}
        with replacing(path) as temporary:
            temporary.write_bytes(save(arrays, {"budcache": json.dumps(header)}))
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Record:
        """Read a record; a file that is not one is refused with a sentence."""
        from safetensors import SafetensorError, safe_open

        source = Path(path)
        try:
            if source.stat().st_size > MAX_BYTES:
                raise RecordError(f"{source} has more than {MAX_BYTES} bytes. Is this the right file?")
            with safe_open(source, "numpy") as file:
                header = _header(source, (file.metadata() or {}).get("budcache"))
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 it is no mapping
        except RecordError:
            raise
        except FileNotFoundError:
            raise FileError(f"there is no file {source}. Check the path, or record some runs.") from None
        except (OSError, ValueError, TypeError) as error:  # the last for number formats that numpy does not have
            raise FileError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
        except SafetensorError:
            raise RecordError(f"{source} is not a record, or not all of it. Copy it again, or record anew.") from None
        return cls([_group(source, number, data, arrays) for number, data in enumerate(header["origins"])])


def _header(source: Path, text: str | None) -> dict[str, Any]:
    """What the file says of itself."""
    try:
        header = dict(json.loads(text or ""))
        version = header["version"]
        ours = header["kind"] == "record" and type(version) is int and version >= 1
        newer = ours and version > VERSION
        ours = newer or (ours and header["blocks"] == BLOCKS and isinstance(header["origins"], list))
    except (ValueError, TypeError, KeyError, RecursionError):
        ours = newer = False
    if newer:
        raise RecordError(
            f"{source} is a record of version {quote(version)}, and this budcache reads up to {VERSION}. Upgrade "
            "budcache."
        )
    if not ours:
        raise RecordError(f"{source} is not a record of budcache. Is this the right file?")
    return header


def _group(source: Path, number: int, data: Any, arrays: dict[str, Any]) -> Runs:
    """One kind of runs out of a file, with nothing taken on trust."""
    try:
        levels, half = arrays[f"levels.{number}"], arrays[f"products.{number}"]
        steps = len(levels) - 1
        rows = 2 * steps + 1
        if not 1 <= steps <= MAX_STEPS or half.ndim != 2 or half.shape[1] != rows * (rows + 1) // 2:
            raise ValueError
        if levels.dtype != np.float64 or half.dtype != np.float64:
            raise ValueError
        if levels.min() < 0 or levels.max() > 1e12 or abs(half).max(initial=0) > 1e100:
            raise ValueError
        upper = np.triu_indices(rows)
        products = np.zeros((len(half), rows, rows))
        products[:, upper[0], upper[1]] = half
        products[:, upper[1], upper[0]] = half
        squares = np.einsum("nii->ni", products)
        if (squares < 0).any() or (products**2 > 1.001 * squares[:, :, None] * squares[:, None, :] + 1e-300).any():
            raise ValueError
        return Runs(Origin.model_validate(data), Grams(levels, products))
    except (ValueError, TypeError, KeyError, SearchError, PolicyError):
        raise RecordError(f"{source} is damaged: its runs number {number} make no sense. Record them anew.") from None
