"""What the hub has for a model: read off a listing of cards, nothing is downloaded."""

from __future__ import annotations

import os
from typing import Any

from budcache.errors import FileError, PolicyError, SearchError
from budcache.hub.published import TAG, Published, weights_tag
from budcache.hub.reading import SECONDS, Repository, hub_answers, named
from budcache.options import whole
from budcache.provenance import same_adapters
from budcache.storage.schema import Text, Value

__all__ = ["Found", "find", "read_entry"]

UNKNOWN = 0.25  # how far a setting is taken to be that only one side names
MOST = 100  # of each listing; the hub gives those first that changed last


class Found(Value):
    """A ladder on the hub.

    Args:
        name: `owner/name`.
        same_weights: whether it was made on these very weights, with the same LoRAs at work.
        same_adapters: whether it was made with the LoRAs that are at work here; by name none are.
        base_model: the hub id of its model, if the card has one.
        says: what its card says.
    """

    name: Text
    same_weights: bool
    same_adapters: bool = True
    base_model: Text | None = None
    says: Published

    def __str__(self) -> str:
        budgets = self.says.budgets
        calls = str(budgets[0]) if len(budgets) == 1 else f"{budgets[0]} to {budgets[-1]}"
        more = ", same weights" if self.same_weights else ""
        more += f", with {', '.join(self.says.adapters)}" if self.says.adapters else ""
        return f"{self.name}  {calls} of {self.says.steps} calls{more}"


def find(
    model: Any,
    *,
    steps: int | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    guidance: float | None = None,
    token: str | bool | None = None,
) -> list[Found]:
    """The ladders that the hub has for a model, the nearest first: weights, LoRAs, steps, then size, then guidance.

    Args:
        model: a pipeline, whose weights are recognised wherever they came from; or a hub id, for which nothing of the
            model is loaded and ladders are found by its name.
        steps: settings to be near to, as are the others; by default the pipeline's own.
        token: as for `huggingface_hub`; by default the one of this machine's login.
    """
    if steps is not None and whole("steps", steps) < 1:
        raise SearchError(f"no ladder has {steps} steps. Give at least 1, or leave it out.")
    weights, adapters = None, tuple[str, ...]()
    if isinstance(model, str | os.PathLike):
        base = named(model)
        if base is None:
            raise FileError(f"{os.fspath(model)!r} is no hub id. Give a pipeline, or an id of the form owner/name.")
    else:
        from budcache.pipeline.arguments import arguments
        from budcache.pipeline.origin import describe
        from budcache.pipeline.parts import check_pipeline

        check_pipeline(model)
        origin = describe(model)
        base, weights, adapters = named(origin.model) if origin.model else None, origin.weights, origin.adapters
        usual = arguments(model).get("num_inference_steps")
        steps = steps if steps is not None or not isinstance(usual, int) else usual
        guidance = origin.guidance if guidance is None else guidance
        if height is None and width is None:
            height, width = origin.height, origin.width
        frames = origin.frames if frames is None else frames
    found: dict[str, Found] = {}
    for tag in ([weights_tag(weights)] if weights else []) + ([f"base_model:{base.name}"] if base else []):
        for entry in _listed(tag, base.name if base else "these weights", token):
            read = read_entry(entry, weights, adapters)
            if read is not None:
                found.setdefault(read.name, read)
    wanted = {"height": height, "width": width, "frames": frames, "guidance": guidance}
    return sorted(found.values(), key=lambda each: _distance(each, steps, wanted))


def _listed(tag: str, model: str, token: str | bool | None) -> list[Any]:
    """The hub's listing of ladders with a tag, as it was sent.

    Not through `list_models`, which a single card with an odd field would end with an error.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    import budcache

    with hub_answers(Repository(model)):
        answer = get_session().get(
            f"{constants.ENDPOINT}/api/models",
            params={"filter": [TAG, tag], "cardData": "true", "sort": "lastModified", "limit": MOST},
            headers=build_hf_headers(token=token, library_name="budcache", library_version=budcache.__version__),
            timeout=SECONDS,
        )
        hf_raise_for_status(answer)
        found = answer.json()
    return found[:MOST] if isinstance(found, list) else []


def read_entry(entry: Any, weights: str | None, adapters: tuple[str, ...] = ()) -> Found | None:
    """What an entry of a listing says; None if it is not one of ours, or not well."""
    if not isinstance(entry, dict) or not isinstance(entry.get("cardData"), dict):
        return None
    name, card = entry.get("id"), entry["cardData"]
    try:
        if not isinstance(name, str) or named(name) != Repository(name):
            return None
        says, base, tags = Published.read(card.get(TAG)), card.get("base_model"), entry.get("tags")
        alike = same_adapters(adapters, says.adapters)
        same = alike and weights is not None and isinstance(tags, list) and weights_tag(weights) in tags
        base = base if isinstance(base, str) else None
        return Found(name=name, same_weights=same, same_adapters=alike, base_model=base, says=says)
    except PolicyError:
        return None


def _distance(found: Found, steps: int | None, wanted: dict[str, float | None]) -> tuple[Any, ...]:
    says = found.says
    away = 0.0 if steps is None else abs(says.steps - steps) / steps
    far = {name: _far(value, getattr(says, name)) for name, value in wanted.items()}
    size = far["height"] + far["width"] + far["frames"]
    return not found.same_weights, not found.same_adapters, away, size, far["guidance"], found.name


def _far(value: float | None, ends: tuple[float, float] | None) -> float:
    """How far a value lies outside of a range, as a share of it; what is not known is the model's own, so not far."""
    if value is None or ends is None:
        return 0.0 if value is None and ends is None else UNKNOWN
    return max(ends[0] - value, value - ends[1], 0.0) / max(abs(value), 1e-6)
