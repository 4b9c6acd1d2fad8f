"""Drawings: one prompt from one seed, in full or under a policy, and the album in which their pictures are kept."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from budcache.errors import BudcacheError, FileError
from budcache.metrics.pixels import psnr
from budcache.policy import Policy
from budcache.report.frames import strip_of
from budcache.report.gallery import TINY, difference
from budcache.samples.samples import fresh, seeded
from budcache.storage import media
from budcache.storage.files import read_json, replacing, write_json
from budcache.studio.saying import noted

__all__ = ["Album", "Drawing", "Drawn"]

KNOWN = 4096  # drawings whose facts are in memory
SIDE, FRAMES = 1024, 24  # what pages show at most: pixels a side, and frames of a video
PICTURE, DIFFERENCE, FACTS, SAMPLE = "picture.webp", "difference.webp", "facts.json", "sample.npy"


@dataclass(frozen=True)
class Drawing:
    """What can be drawn: a prompt, from a seed, in full or under a policy; `call` are settings of its own."""

    prompt: str
    seed: int
    steps: int
    policy: Policy | None = None
    call: tuple[tuple[str, Any], ...] = ()

    @property
    def full(self) -> Drawing:
        """The same in full."""
        return replace(self, policy=None)

    def key(self, model: str) -> str:
        """A name for it, the same for the same picture of the same model."""
        under = "" if self.policy is None else moves(self.policy)
        return digest(model, self.prompt, self.seed, self.steps, under, *self.call)


@dataclass(frozen=True)
class Drawn:
    """What has been drawn. Pictures are files of the album; a video is a strip of its frames, shown one at a time."""

    key: str
    calls: int
    seconds: float
    width: int
    height: int
    frames: int = 1
    pace: int = 0  # milliseconds for each frame
    psnr: float | None = None  # dB to the full run
    video: str = ""  # the name of the file
    note: str = ""  # what budcache warned of: a guidance that a policy was not fitted at

    @property
    def tiny(self) -> bool:
        """Whether it is so small that its pixels should be seen as squares."""
        return max(self.width, self.height) <= TINY


class Ran(NamedTuple):
    """A sample as numbers, its calls, the seconds that it took, and what was warned of."""

    sample: Any
    calls: int
    seconds: float
    note: str


@lru_cache(512)
def moves(policy: Policy) -> str:
    """What a picture depends on of a policy, in a few letters."""
    return digest(policy.model_dump_json(exclude={"origin", "quality", "refined"}))


def digest(*values: Any) -> str:
    """A few letters for some values."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]


class Album:
    """A folder of drawn pictures.

    Args:
        folder: where they are kept.
        call: arguments of the pipeline that all have in common.
        fps: frames a second of videos.
    """

    def __init__(self, folder: Path, call: Mapping[str, Any], fps: int = media.FPS) -> None:
        self.folder, self.call, self.fps = folder, dict(call), fps
        self.model = ""  # what the pictures depend on beside the drawing; known once the pipeline is loaded
        self.seconds_per_call: float | None = None  # by the last full run
        self._warm = False
        self._known: dict[str, Drawn] = {}  # a few, so that a page need not read files every second

    def recognise(self, pipe: Any) -> None:
        """Take note of the model: pictures that other weights have drawn are not taken for its own."""
        from budcache.pipeline import describe

        origin = describe(pipe).model_dump(mode="json", exclude={"versions"})
        kind = str(getattr(pipe, "dtype", ""))
        self.model = json.dumps([origin, kind, self.call, self.fps], sort_keys=True, default=str)

    def found(self, drawing: Drawing) -> Drawn | None:
        """What was drawn, if it was."""
        key = drawing.key(self.model)
        if key not in self._known:
            with suppress(BudcacheError, TypeError):
                facts = read_json(self.folder / key / FACTS)
                if isinstance(facts, dict) and (self.folder / key / PICTURE).exists():
                    self._remember(Drawn(**facts))
        return self._known.get(key)

    def _remember(self, drawn: Drawn) -> None:
        if drawn.psnr is None:
            self.seconds_per_call = drawn.seconds / max(1, drawn.calls)
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[drawn.key] = drawn

    def draw(self, pipe: Any, drawing: Drawing) -> Drawn:
        """Draw it, unless that was done; and the full run before it, which it is compared with."""
        kept = self.found(drawing)
        if kept is not None:
            return kept
        if drawing.policy is None:
            return self._keep(drawing, self._run(pipe, drawing), None)
        self.draw(pipe, drawing.full)
        reference = self._sample(pipe, drawing.full)
        return self._keep(drawing, self._run(pipe, drawing), reference)

    def path(self, key: str, name: str) -> Path | None:
        """A file of the album by its name, or None."""
        path = self.folder / key / name
        return path if key.isalnum() and path.parent.parent == self.folder and path.is_file() else None

    def _sample(self, pipe: Any, drawing: Drawing) -> Any:
        path = self.folder / drawing.key(self.model) / SAMPLE
        try:
            return np.asarray(media.numbers(path), np.float32)
        except FileError:  # somebody has removed it
            return self._run(pipe, drawing).sample

    def _run(self, pipe: Any, drawing: Drawing) -> Ran:
        """Have the pipeline draw it."""
        from budcache.pipeline import applied
        from budcache.pipeline.arguments import arguments

        call = {**self.call, **dict(drawing.call), "prompt": drawing.prompt, "output_type": "np"}
        if "num_inference_steps" in arguments(pipe):
            call["num_inference_steps"] = drawing.steps
        if not self._warm:  # what is set up with the first picture should not count as anybody's time
            with suppress(Exception):
                pipe(**fresh(seeded({**call, "num_inference_steps": 2}, drawing.seed)))
            self._warm = True
        notes: list[str] = []
        with noted(notes), nullcontext(None) if drawing.policy is None else applied(pipe, drawing.policy) as handle:
            begin = time.perf_counter()
            output = pipe(**fresh(seeded(call, drawing.seed)))
            seconds = time.perf_counter() - begin
            calls = drawing.steps if handle is None else handle.stats().last_run_calls
        return Ran(np.asarray(media.samples(output)[0], np.float32), int(calls), seconds, " ".join(notes))

    def _keep(self, drawing: Drawing, ran: Ran, reference: Any) -> Drawn:
        key, sample = drawing.key(self.model), ran.sample
        home = self.folder / key
        home.mkdir(parents=True, exist_ok=True)
        frames = shown(sample)
        width, height = frames[0].size
        video = ""
        if sample.ndim == 4:
            whole = [media.to_picture(frame) for frame in sample]
            video = media.save(whole, home / "video", self.fps).name
        if reference is None:
            with replacing(home / SAMPLE) as temporary:
                np.save(temporary, np.asarray(sample, np.float16))
        else:
            pairs = zip(frames, shown(reference), strict=True)
            _write(home / DIFFERENCE, [difference(one, other) for one, other in pairs])
        _write(home / PICTURE, frames)
        length = len(sample) if sample.ndim == 4 else 1
        found = Drawn(
            key,
            ran.calls,
            round(ran.seconds, 3),
            width,
            height,
            len(frames),
            round(1000 * length / self.fps / len(frames)) if length > 1 else 0,
            None if reference is None else round(psnr(sample, reference), 3),
            video,
            ran.note,
        )
        write_json(home / FACTS, asdict(found))  # last, for it says that all the others are there
        return found


def shown(sample: Any) -> list[Image.Image]:
    """A picture, or some of a video's frames, evenly spread, no larger than pages show them."""
    if sample.ndim == 3:
        sample = sample[None]
    count = min(len(sample), FRAMES)
    places = [round(place * (len(sample) - 1) / max(1, count - 1)) for place in range(count)]
    frames = [media.to_picture(sample[place]) for place in places]
    side = SIDE if count == 1 else SIDE // 2
    for frame in frames:
        frame.thumbnail((side, side), Image.Resampling.LANCZOS)
    return frames


def _write(path: Path, frames: list[Image.Image]) -> None:
    small = max(frames[0].size) <= TINY
    with replacing(path) as temporary:
        temporary.write_bytes(media.to_webp(strip_of(frames), 92, lossless=small))
