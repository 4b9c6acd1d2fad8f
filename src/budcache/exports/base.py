"""What a target is: another runtime, what it can carry of a policy, and the files that it reads."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from budcache import __version__
from budcache.errors import PolicyError
from budcache.plan import Plan
from budcache.policy import Origin, Policy, Quality, Reuse
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.models.loras import Lora

__all__ = ["Made", "Target", "Task", "decimals", "filled", "module"]

TEMPLATES = Path(__file__).parent / "templates"
MARK = "# What stands below this mark is copied.\n"
UNKNOWN = "`budcache fit` and a search on 8 prompts or more measure it"
SOLVER_FREE = "FlowMatchEulerDiscreteScheduler"  # whose steps in a row with one output are one long step (F1)


@dataclass(frozen=True)
class Task:
    """One export.

    Args:
        policy: what is exported.
        levels: the K + 1 effective noise levels of its runs; none where the target needs none.
        full: those that the pipeline itself has in such a run: by them a policy's own move to other sizes.
        runtime: which of the runtimes that a target serves, where it serves several.
        model: the folders of the pipeline that is to be written along, with a target that can; the last has its index.
        call: arguments that the pipeline has to be called with, beside a prompt, each with a comma before it.
        loaded: arguments that it has to be loaded with, likewise.
        lora: the LoRA that is to be written along with it.
        name: of what is written, without ending.
    """

    policy: Policy
    levels: tuple[float, ...] = ()
    full: tuple[float, ...] = ()
    runtime: str | None = None
    model: tuple[Path, ...] = ()
    call: str = ""
    name: str = "policy"
    loaded: str = ""
    lora: Lora | None = None

    @cached_property
    def plan(self) -> Plan:
        """What the policy means on these levels, for the combined output of guidance."""
        return Plan.of(self.policy, self.levels)

    @property
    def short(self) -> tuple[float, ...]:
        """The levels at which the model is computed, and the last: all there is with plain reuse and Euler (F1)."""
        return tuple(self.levels[k] for k in (*self.plan.computed, self.plan.end))

    @property
    def bits(self) -> list[int]:
        """The mask as numbers."""
        computed = set(self.plan.computed)
        return [int(k in computed) for k in range(self.plan.end)]

    @property
    def goes_by_rows(self) -> bool:
        """Whether anything but the newest output is needed."""
        return any(stretch.blend is not None for stretch in self.plan)

    @property
    def whole(self) -> Policy:
        """The policy with all that a run needs and nothing else: levels filled in, rows for the combined output."""
        return Policy(
            mask=self.policy.mask,
            sigmas=self.levels or self.policy.sigmas,
            weights=self.policy.weights,
            rows=self.policy.rows,
            origin=Origin(levels=self.full) if self.full else None,
        )

    @property
    def text(self) -> str:
        """The same as it stands in a file."""
        return json.dumps(self.whole.model_dump(mode="json", exclude_none=True))

    @property
    def plain_pipeline(self) -> str:
        """The kind of pipeline that it is for."""
        origin = self.policy.origin
        return _plain(origin.pipeline) if origin is not None and origin.pipeline else "your model"

    @property
    def header(self) -> str:
        """What made a file, and of what."""
        origin = self.policy.origin
        of = f" of {_plain(origin.model)}" if origin is not None and origin.model else ""
        calls = f"{self.policy.budget} of {self.policy.steps} model calls"
        return f"Made by budcache {__version__} from a policy{of}: {calls}. Licence: Apache-2.0."


@dataclass(frozen=True)
class Made:
    """What a target makes of a policy.

    Args:
        files: texts by their path within the export's folder; a single one under the name "" is the export itself.
        run: the line that says how to run it; `{out}` in it stands for where it was written, and
            `{folder}` for the folder which that is in.
        copied: folders whose files are written along, before the others.
        beside: files that are copied, by their path within the export's folder.
    """

    files: Mapping[str, str]
    run: str
    copied: tuple[Path, ...] = ()
    beside: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class Target(ABC):
    """Another runtime.

    A new one is a file with one class and its entry in `TARGETS`. Say in the class variables what it carries: whoever
    exports is told of the rest, and has to agree. `tests/exports/test_contract.py` is for all of them.

    Attributes:
        name, about: by which it is chosen, and a line for lists of targets.
        runtimes: the names of runtimes that it serves, where it serves several; the first is the usual one.
        reuses: what its reused steps can repeat.
        needs_levels: whether it has to know the noise levels.
        carries_levels: whether it can be told noise levels.
        carries_rows: whether it can go on with more than the newest output.
        carries_solvers: whether it knows the schedulers of diffusers; else its steps are those of Euler.
        carries_experts: whether it lets a second network take over midway, as Wan 2.2 does.
        needs_argument: what a pipeline that is asked for levels has to take, for the line that says how to run it.
        takes_model: whether it can write a whole pipeline.
        is_module: whether what it writes is one file of Python, to be imported by its name.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    runtimes: ClassVar[tuple[str, ...]] = ()
    reuses: ClassVar[tuple[Reuse, ...]] = ("output",)
    needs_levels: ClassVar[bool] = True
    carries_levels: ClassVar[bool] = True
    carries_rows: ClassVar[bool] = True
    carries_solvers: ClassVar[bool] = False
    carries_experts: ClassVar[bool] = False
    needs_argument: ClassVar[str | None] = None
    takes_model: ClassVar[bool] = False
    is_module: ClassVar[bool] = False

    @abstractmethod
    def make(self, task: Task) -> Made:
        """The files for a policy, or a `PolicyError` with the reason why there can be none."""

    def lost(self, task: Task) -> list[str]:
        """What of a policy this runtime cannot carry, each a clause."""
        policy, found = task.policy, []
        scheduler = policy.origin.scheduler if policy.origin is not None else None
        if policy.reuse not in self.reuses:
            instead = "the blocks' residuals are" if policy.reuse == "output" else "the model's outputs are"
            was = "outputs" if policy.reuse == "output" else "residuals"
            found.append(
                f"{instead} reused where the policy reuses {was}, which changed quality by 0.1 to 0.8 dB on tiny-flux"
            )
        if policy.is_blended and not self.carries_rows:
            bare = policy.sigmas is None or not self.carries_levels  # so that nothing but the mask is left
            found.append(f"the blend of past outputs is left out{_decibels(policy, 'psnr_plain' if bare else None)}")
        elif policy.guided is not None:
            found.append(
                "guidance goes by the rows for the combined output, not by those for its branches apart"
                + _decibels(policy, "psnr_combined")
            )
        if policy.sigmas is not None and not self.carries_levels:
            found.append(
                "its own noise levels are left out" + ("" if policy.is_blended else _decibels(policy, "psnr_plain"))
            )
        solver = scheduler not in (None, SOLVER_FREE) and policy.rows is None and policy.reuse == "output"
        if solver and not self.carries_solvers and "output" in self.reuses:
            found.append(f"the steps of {scheduler} become those of Euler")
        if policy.origin is not None and policy.origin.switch is not None and not self.carries_experts:
            found.append(f"one network makes all steps, where a second one takes over at step {policy.origin.switch}")
        return found

    def writes_module(self, runtime: str | None) -> bool:
        """Whether what is written is imported by its name."""
        return self.is_module

    def runtime(self, task: Task) -> str:
        """The runtime that was asked for, or the usual one."""
        return task.runtime or self.runtimes[0]


def _plain(text: str) -> str:
    """A text of a file, as it may stand in code of any language: one line of letters, digits and what names need."""
    return " ".join(re.sub(r"[^\w./@ -]", " ", text, flags=re.ASCII).split())[:120]


def _decibels(policy: Policy, left: str | None) -> str:
    """What leaving a part of a policy out costs, where both figures are on record; `left` names that of the rest."""
    quality = policy.quality or Quality()
    rest = None if left is None else getattr(quality, left)
    if quality.psnr is None or rest is None:
        return f" (what that costs is not on record{f'; {UNKNOWN}' if left else ''})"
    on = "on the prompts that it was fitted on" if quality.used_to_fit else "on held-out prompts"
    return f" ({quality.psnr:.1f} dB with it, {rest:.1f} dB without, {on})"


def filled(name: str, **values: object) -> str:
    """A template with values in the place of `{{ name }}`.

    `runtime` is what carries out policies without budcache, and `torch` what it needs beside where arrays are torch's.
    """
    text = (TEMPLATES / name).read_text(encoding="utf-8")
    runtime = (Path(__file__).parent / "runtime.py").read_text(encoding="utf-8").partition(MARK)[2]
    torch = (TEMPLATES / "torch.py.txt").read_text(encoding="utf-8")
    for key, value in {"runtime": runtime, "torch": torch, **values}.items():
        text = text.replace(f"{{{{ {key} }}}}", str(value))
    return text


def module(template: str, task: Task) -> str:
    """A file of Python with the policy in it."""
    decimals(task.short)
    values = {"header": task.header, "policy": task.text, "module": task.name, "budget": task.policy.budget}
    return filled(template, **values)


def decimals(levels: Sequence[float]) -> list[str]:
    """Numbers as every reader takes them: some read `1e-05` as two numbers."""
    if levels[-1] != 0.0:
        raise PolicyError(f"the noise levels end at {quote(levels[-1])}, but other runtimes end at 0. Search it anew.")
    return [f"{level:.9f}".rstrip("0").removesuffix(".") + (".0" if level == int(level) else "") for level in levels]
