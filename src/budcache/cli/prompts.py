"""Which prompts `budcache compare` learns on, and which it measures on."""

from __future__ import annotations

from pathlib import Path

from budcache.cli.common import CALIBRATION_PROMPTS, first_prompts, tell
from budcache.errors import SearchError
from budcache.samples.prompts import read_prompts
from budcache.wording import several

__all__ = ["prompts_of"]

EVALUATION_PROMPTS = 16  # of an embedded model's own, where nobody says how many


def prompts_of(
    model: str,
    prompts: Path | None,
    calibration: Path | None,
    count: int | None,
    calibration_count: int | None,
    methods: list[str] | None,
) -> tuple[list[str], list[str]]:
    """Prompts to learn on, and others to measure on: of files, of one file, or those that an embedded model brings.

    Args:
        model: its name.
        prompts: a file to measure on; of both, if there is no other for a model that brings none.
        calibration: a file to learn on.
        count: how many to measure on.
        calibration_count: how many to learn on.
        methods: those that take part; None is all.
    """
    from budcache import models

    embedded = model in models.EMBEDDED
    if prompts is not None and calibration is None and not embedded and _needs_prompts(methods):
        learned_on, measured_on = _split(prompts, count, calibration_count)
    else:
        own = embedded and prompts is None
        measured_on = _prompts(model, prompts, "evaluation", count or (EVALUATION_PROMPTS if own else None))
        usual = CALIBRATION_PROMPTS if calibration is None else None
        learned_on = _prompts(model, calibration, "calibration", calibration_count or usual)
    if not measured_on:
        raise SearchError("there are no prompts to measure on. Give a file of them with --prompts.")
    return learned_on, measured_on


def _prompts(model: str, file: Path | None, split: str, count: int | None) -> list[str]:
    """The prompts of a file, or those that an embedded model brings."""
    from budcache import models

    own = models.prompts(model, split) if model in models.EMBEDDED else []
    found = own if file is None else read_prompts(file)
    return first_prompts(found, count, file or model)


def _needs_prompts(methods: list[str] | None) -> bool:
    """Whether one of the methods has to be calibrated."""
    from budcache.comparison.methods import UNTAUGHT

    return methods is None or not set(methods) <= set(UNTAUGHT)


def _split(file: Path, count: int | None, learn: int | None = None) -> tuple[list[str], list[str]]:
    """One file for both: the first prompts to calibrate on, a third if nobody says how many; the rest to measure on."""
    found = read_prompts(file)
    if len(found) < 3:
        raise SearchError(
            f"{file} has {several(len(found), 'prompt')}, but methods have to be calibrated on two others than are "
            "measured on. Give these with --calibration, or write more."
        )
    part = learn or min(max(2, len(found) // 3), CALIBRATION_PROMPTS)
    if part >= len(found):
        raise SearchError(
            f"--calibration-count is {part}, but {file} has {len(found)} prompts, and one at least is to be measured "
            "on. Lower it, or give others with --calibration."
        )
    rest = found[part:]
    if count is not None and count > len(rest):
        raise SearchError(
            f"--count is {count}, but {file} has {len(rest)} to measure on beside {part} to calibrate on. "
            "Lower it, or give others with --calibration."
        )
    measured = rest[:count]
    tell(f"calibrating on the first {part} of {len(found)} prompts, measuring on {len(measured)} others.")
    return found[:part], measured
