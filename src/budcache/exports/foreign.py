"""Policies that others made: the authors' checkpoints, cache-dit's masks and presets, and steps named by hand."""

from __future__ import annotations

import importlib
import os
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from budcache.errors import FileError, PolicyError
from budcache.mask import MAX_STEPS, Mask
from budcache.options import known_options_of_serving, whole
from budcache.policy import Policy, Reuse
from budcache.wording import nearest, quote

__all__ = ["PRESETS", "import_policy"]

MAX_BYTES = 64_000_000  # a checkpoint has a few thousand
MAX_YAML = 100_000  # read by a slow parser
CHECKPOINTS, SETTINGS = (".pt", ".pth", ".ckpt"), (".yaml", ".yml")
PREFIX = "cache-dit:"

# cache-dit's presets for 28 steps: runs of computed steps, and of reused ones between them.
PRESETS = {
    "slow": ((8, 3, 3, 2, 1, 1), (1, 2, 2, 2, 3)),
    "medium": ((6, 2, 2, 2, 2, 1), (1, 3, 3, 3, 3)),
    "fast": ((6, 1, 1, 1, 1, 1), (1, 3, 4, 5, 4)),
    "ultra": ((4, 1, 1, 1, 1), (2, 5, 6, 7)),
}
PRESET_STEPS = 28


@known_options_of_serving
def import_policy(
    source: str | os.PathLike[str] | Sequence[int] | None = None,
    *,
    steps: int | None = None,
    computed: Iterable[int] | None = None,
    reuse: Reuse | None = None,
) -> Policy:
    """A policy from what others made, or from steps that you name.

    Args:
        source: a checkpoint of the authors' code (`.pt`); a mask of cache-dit as a list of 0 and 1, as text or in a
            YAML file; the name of one of its presets, such as "cache-dit:fast".
        steps: K of the full run, where the source does not say it.
        computed: instead of a source: the steps to compute.
        reuse: what reused steps repeat; None is what the source does: "residual" for checkpoints and cache-dit,
            "output" for steps named by hand.
    """
    if (source is None) == (computed is None):
        raise PolicyError("give either a source or the steps to compute, and not both.")
    if computed is not None:
        if steps is None:
            raise PolicyError("how many steps has the full run? Give steps, too (--steps).")
        return Policy(mask=Mask.of(whole("steps", steps), _named(computed)), reuse=reuse or "output")
    steps = None if steps is None else whole("steps", steps)
    found = _read(source, steps)
    if steps is not None and len(found["mask"]) != steps:
        raise PolicyError(f"this is a mask of {len(found['mask'])} steps, not of {steps}. Leave the steps out.")
    return Policy(reuse=reuse or "residual", **found)


def _named(computed: Iterable[int]) -> list[int]:
    if isinstance(computed, str) or not isinstance(computed, Iterable):
        raise PolicyError(
            f"computed is {quote(computed)}, but a list of steps is expected. Give one such as [0, 4, 8]."
        )
    return [whole("computed", step) for step in computed]


def _read(source: str | os.PathLike[str] | Sequence[int] | None, steps: int | None) -> dict[str, Any]:
    if isinstance(source, os.PathLike) or (isinstance(source, str) and _is_path(source)):
        path = Path(source)
        return _checkpoint(path, steps) if path.suffix in CHECKPOINTS else {"mask": _in_settings(path)}
    if isinstance(source, str) and (source.startswith(PREFIX) or source in PRESETS):
        return {"mask": _preset(source.removeprefix(PREFIX), steps or PRESET_STEPS)}
    if isinstance(source, str):
        return {"mask": Mask.parse(re.sub(r"[\s,\[\]]", "", source[:10_000]))}
    return {"mask": _bits(source, "the mask")}


def _is_path(text: str) -> bool:
    """By its ending, or because there is such a file; what could be a mask or a preset is that first."""
    if text.endswith((*CHECKPOINTS, *SETTINGS)):
        return True
    could_be_more = re.fullmatch(r"[01\s,\[\]]*", text) or text in PRESETS or text.startswith(PREFIX)
    return not could_be_more and os.path.isfile(text)  # noqa: PTH113 which takes any text


def _preset(name: str, steps: int) -> Mask:
    if name not in PRESETS:
        raise PolicyError(f"cache-dit has no preset {quote(name)}. {nearest(name, PRESETS)}")
    if steps == PRESET_STEPS:
        compute, cache = PRESETS[name]
        pairs = zip(compute, (*cache, 0), strict=False)
        return Mask.parse("".join("1" * ones + "0" * zeros for ones, zeros in pairs))
    try:
        make = importlib.import_module("cache_dit").steps_mask
    except ImportError:
        raise PolicyError(
            f"cache-dit's presets are for {PRESET_STEPS} steps, and it stretches them itself to {steps}. "
            "Install it with: pip install 'budcache[cache-dit]'."
        ) from None
    return _bits(make(total_steps=steps, mask_policy=name), "the preset")


def _in_settings(path: Path) -> Mask:
    """The mask in a YAML file of cache-dit."""
    import yaml

    class Plain(yaml.SafeLoader):  # type: ignore[misc]
        """YAML without names for parts: a few lines of these can stand for more than fits into memory."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError
            return super().compose_node(parent, index)

    try:
        found = yaml.load(_bytes(path, MAX_YAML), Plain)
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError):  # the last two of its dates
        raise PolicyError(f"{path} is not plain YAML. Is it the right file?") from None
    settings = found.get("cache_config", found) if isinstance(found, dict) else None
    mask = settings.get("steps_computation_mask") if isinstance(settings, dict) else None
    if mask is None:
        raise PolicyError(f"{path} has no steps_computation_mask, so no mask to import. Is it the right file?")
    return _bits(mask, f"steps_computation_mask of {path}")


def _checkpoint(path: Path, steps: int | None) -> dict[str, Any]:
    """The mask of a checkpoint of the authors' code, and its noise levels if they were learned.

    Its `cache_step` has the steps that are *not* computed. How many there are in all it may not say; then the name that
    their code gives the file does (28nfe10).
    """
    data = _safely(path)
    skipped = _whole(data.get("cache_step"), f"cache_step of {path}")
    levels = data.get("learned_sigmas")
    schedule = _whole(data["schedule_mask"], f"schedule_mask of {path}") if "schedule_mask" in data else None
    known = data.get("student_steps"), None if schedule is None else len(schedule), steps
    found = next((value for value in known if type(value) is int), None) or _in_name(path, len(skipped))
    if found is None:
        raise PolicyError(f"{path} does not say how many steps the full run has. Give steps (--steps).")
    if not 1 <= found <= MAX_STEPS:
        raise PolicyError(f"{path} is of a run of {found} steps, which is not possible. Is it the right file?")
    outside = [step for step in skipped if not 0 <= step < found]
    if outside:
        raise PolicyError(
            f"{path} reuses step {outside[0]}, which a run of {found} steps does not have. Check the steps."
        )
    mask = Mask.of(found, set(range(found)) - set(skipped))
    return {"mask": mask, **({} if levels is None else {"sigmas": _levels(levels, found, path)})}


def _in_name(path: Path, skipped: int) -> int | None:
    named = re.search(r"(\d{1,4})nfe(\d{1,4})", path.name)
    return int(named[1]) if named and int(named[1]) - skipped == int(named[2]) else None


def _levels(levels: Any, steps: int, path: Path) -> tuple[float, ...]:
    try:
        if len(levels) > MAX_STEPS + 1:
            raise ValueError
        found = tuple(float(level) for level in levels)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise PolicyError(f"learned_sigmas of {path} is no list of numbers. Is it the right file?") from None
    return found if len(found) != steps else (*found, 0.0)  # some leave out the last


def _safely(path: Path) -> Mapping[str, Any]:
    """What a checkpoint holds, if that is data: nothing in it is executed."""
    import torch

    size = len(_bytes(path))
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
    except Exception:  # what a damaged or hostile file raises is up to the file
        raise _unread(path, "a broken archive") from None
    if size > MAX_BYTES:
        raise PolicyError(f"{path} would take {size} bytes; a checkpoint with a mask is small. Is it the right file?")
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # likewise
        raise _unread(path, type(error).__name__) from None
    if not isinstance(data, dict) or "cache_step" not in data:
        raise PolicyError(f"{path} has no cache_step, so no mask to import. Is it a checkpoint of the authors' code?")
    return data


def _unread(path: Path, why: str) -> PolicyError:
    return PolicyError(
        f"{path} cannot be read as plain data ({why}), and nothing else is read. "
        "Is it a checkpoint of the authors' code?"
    )


def _is_number(value: Any) -> bool:
    """A tensor without a length counts as one, too."""
    return not getattr(value, "shape", True)


def _bytes(path: Path, most: int = MAX_BYTES) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        raise FileError(f"there is no file {path}. Check the path.") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    if len(content) > most:
        raise PolicyError(f"{path} has more than {most} bytes; what is imported is small. Is it the right file?")
    return content


def _bits(values: Any, what: str) -> Mask:
    found = _whole(values, what)
    if not set(found) <= {0, 1}:
        odd = next(value for value in found if value not in (0, 1))
        raise PolicyError(f"{what} has {quote(odd)} in it. Use only 1 (compute) and 0 (reuse).")
    return Mask(tuple(value == 1 for value in found))


def _whole(values: Any, what: str) -> list[int]:
    """Whole numbers, from a list or a tensor of them."""
    values = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(values, list | tuple) or not all(type(value) is int for value in values):
        raise PolicyError(f"{what} is {quote(values)}, but a list of whole numbers is expected. Is it the right file?")
    return list(values)
