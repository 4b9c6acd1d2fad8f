"""The card of a published ladder: what it is for, how good it is, where it came from, and how to use it."""

from __future__ import annotations

from typing import Any

import yaml

from budcache.hub.published import TAG, Published, weights_tag
from budcache.hub.reading import named
from budcache.policy import Ladder, Origin
from budcache.report.text import strip
from budcache.wording import several

__all__ = ["PICTURE", "base_model_of", "card"]

PICTURE = "ladder.svg"


def base_model_of(ladder: Ladder) -> str | None:
    """The hub id of the model that a ladder was made on, if it names one; the name of a folder does not count."""
    origin = ladder.rungs[0].origin
    model = origin.model if origin is not None else None
    found = named(model) if model else None
    return found.name if found is not None else None


def card(ladder: Ladder, name: str, base_model: str | None = None) -> str:
    """The text of README.md: metadata to search by, then what people read."""
    origin = ladder.rungs[0].origin or Origin()
    model = base_model or origin.model
    title = f"{ladder.budgets[0]}" if len(ladder) == 1 else f"{ladder.budgets[0]} to {ladder.budgets[-1]}"
    parts = [
        f"---\n{yaml.safe_dump(_metadata(ladder, base_model), sort_keys=False, allow_unicode=True)}---",
        f"# {title} of {ladder.steps} model calls" + (f" for {_plain(model)}" if model else ""),
        f"Made with budcache: for {several(len(ladder), 'budget')}, which of the {ladder.steps} steps of a run compute "
        "the network and which reuse what is cached. A run makes exactly as many model calls as its budget says, "
        "whatever the prompt.",
        f"```python\n{_code(ladder, name, base_model, origin)}\n```",
        f"![The mask of every budget, and the quality over model calls]({PICTURE})",
        _table(ladder),
        *_quality(ladder),
        "## Origin",
        _origin(ladder, origin, model),
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(ladder: Ladder, base_model: str | None) -> dict[str, Any]:
    weights = ladder.rungs[0].origin and ladder.rungs[0].origin.weights
    tags = [TAG, "diffusers", *([weights_tag(weights)] if weights else [])]
    base = {"base_model": base_model} if base_model else {}
    return {"library_name": TAG, "tags": tags, **base, TAG: Published.of(ladder).data()}


def _code(ladder: Ladder, name: str, base_model: str | None, origin: Origin) -> str:
    pipeline = origin.pipeline if origin.pipeline and origin.pipeline.isidentifier() else "DiffusionPipeline"
    load = f'{pipeline}.from_pretrained("{base_model}")' if base_model else "..."
    imported = f"from diffusers import {pipeline}\n" if base_model else ""
    result = "frames" if origin.frames or "frames" in origin.ranges else "images"
    middle = ladder.budgets[len(ladder) // 2]
    return (
        f"import budcache\n{imported}\npipe = {load}\n"
        f'with budcache.applied(pipe, "{name}", budget={middle}):  # {middle} model calls instead of {ladder.steps}\n'
        f'    result = pipe("...").{result}[0]'
    )


def _table(ladder: Ladder) -> str:
    """Every rung, also for those who cannot see the picture."""
    rows = [
        f"| {rung.budget} | {rung.steps / rung.budget:.1f} | `{strip(rung.mask)}` | {rung.reuse_text} | "
        f"{(rung.quality.text if rung.quality is not None else None) or 'not measured'} |"
        for rung in ladder
    ]
    head = [
        "| calls | times fewer | steps: █ computes, · reuses | reuse | PSNR to the full run |",
        "|--:|--:|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def _quality(ladder: Ladder) -> list[str]:
    """What the figures were measured on."""
    found = [rung.quality for rung in ladder if rung.quality is not None and rung.quality.psnr is not None]
    if not found:
        return []
    if any(quality.used_to_fit for quality in found):
        return ["Measured on the samples that the policies were made on: on new prompts expect several dB less."]
    text = "PSNR is the mean over samples that were kept out of the search, with its standard error."
    if any(quality.used_to_choose for quality in found):
        text += " The policies were also chosen by these samples, so on new prompts expect a little less."
    return [text]


def _origin(ladder: Ladder, origin: Origin, model: str | None) -> str:
    """Where it came from; of the prompts only how many there were."""
    ranges = Published.of(ladder).data()

    def said(name: str) -> str | None:
        value = ranges.get(name)
        return None if value is None else f"{value[0]} to {value[1]}" if isinstance(value, list) else str(value)

    facts = {
        "model": model,
        "pipeline": origin.pipeline,
        "adapters": ", ".join(origin.adapters) or None,
        "scheduler": origin.scheduler,
        "steps": str(ladder.steps),
        "width x height": None if said("width") is None else f"{said('width')} x {said('height')}",
        "frames": said("frames"),
        "guidance": said("guidance"),
        "true guidance": said("true_guidance"),
        "calibration prompts": None if origin.prompts is None else str(origin.prompts),
        "found by": origin.strategy,
        "sample-calls spent": None if origin.calls is None else str(origin.calls),
        "made with": ", ".join(f"{name} {version}" for name, version in origin.versions.items()) or None,
    }
    rows = [f"| {name} | {_plain(value)} |" for name, value in facts.items() if value is not None]
    return "\n".join(["| | |", "|---|---|", *rows])


def _plain(text: str) -> str:
    """A text of a file as it may stand in Markdown: on one line, no longer than a line, its characters escaped."""
    text = " ".join(text.split())
    text = text if len(text) <= 120 else text[:117] + "..."
    return "".join(f"&#{ord(letter)};" if letter in "<>&|`*_[]\\#!" else letter for letter in text)
