"""Comparisons made up for what shows them: the numbers are invented, the values and pictures are real ones."""

from __future__ import annotations

from random import Random

import numpy as np
from PIL import Image

from budcache import Mask, Origin
from budcache.comparison import Comparison, Entry, LeftOut, Measure
from budcache.comparison.kept import picture
from budcache.comparison.result import Tried
from budcache.storage import media

PSNR = Measure(name="psnr", title="PSNR", unit="dB", digits=2)
LPIPS = Measure(name="lpips", title="LPIPS", digits=4, higher=False)
CLIP = Measure(name="clip-b", title="CLIP (B)", digits=2, reference=False)
STEPS = 12


def entry(method, budget, calls, seconds, title=None, seed=0, better=0.0):
    chance = Random(f"{method} {budget} {seed}")
    masks = [Mask.of(STEPS, [0, *sorted(chance.sample(range(1, STEPS), n - 1))]) for n in calls]
    values = {
        "psnr": tuple(20 + budget + better + chance.random() for _ in calls),
        "lpips": tuple(0.3 / (budget + better) + 0.01 * chance.random() for _ in calls),
        "clip-b": tuple(30 + chance.random() for _ in calls),
    }
    return Entry(
        method=method,
        title=title or method,
        budget=budget,
        calls=calls,
        seconds=seconds,
        full_seconds=(0.95, 0.96)[: len(calls)],
        full_calls=(STEPS, STEPS)[: len(calls)],
        masks=masks,
        values={"clip-b": values["clip-b"]} if method == "full" else values,
        knob="threshold 0.12" if method == "teacache" else None,
        learned_on={"teacache": 4, "budcache": 24, "authors": 2}.get(method),
    )


def comparison(prompts=("a cat", "two dogs", "red"), budgets=(3, 5), methods=("uniform", "teacache", "budcache")):
    count = len(prompts)
    entries = [entry("full", STEPS, [STEPS] * count, [1.1] * count, title="full run, 12 steps")]
    for method in methods:
        for budget in budgets:
            calls = [budget + (i % 3 if method == "teacache" else 0) for i in range(count)]
            seconds = [call / STEPS for call in calls]
            entries.append(entry(method, budget, calls, seconds, better=3.0 if method == "budcache" else 0.0))
    return Comparison(
        origin=Origin(model="tiny", pipeline="FluxPipeline", versions={"budcache": "0.1.0", "torch": "2.13.0"}),
        steps=STEPS,
        budgets=budgets,
        prompts=prompts,
        seed=10_000,
        calibration=8,
        device="cpu",
        threads=1,
        dtype="float32",
        measures=(PSNR, LPIPS, CLIP),
        entries=entries,
        left_out=(LeftOut(method="dicache", title="DiCache", budgets=budgets, reason="its trunk is not known."),),
        history=[Tried(budget=b, loss=1 / (b + i), calls=10 * i, phase="ladder") for i in range(1, 5) for b in budgets],
    )


def draw(comparison, folder, size=(24, 16)):
    """A picture for everything in a comparison."""
    for number, one in enumerate(comparison.entries):
        for sample in range(len(comparison.prompts)):
            path = picture(folder, one.method, one.budget, sample)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", size, (10 * number, 80, 40 * sample)).save(path)


def film(comparison, folder, count=4, size=(24, 16), numbers=False, ending=".webp"):
    """A video for everything in a comparison, with its numbers or without; its frames are returned."""
    rng, made = np.random.default_rng(0), {}
    for one in comparison.entries:
        for sample in range(len(comparison.prompts)):
            frames = rng.integers(0, 255, (count, size[1], size[0], 3), np.uint8)
            made[one.method, one.budget, sample] = frames
            path = picture(folder, one.method, one.budget, sample)
            pictures = [Image.fromarray(frame) for frame in frames]
            media.save(pictures[count // 2], path)
            media.save(pictures, path.with_suffix(ending))
            if numbers:
                kept = folder / "samples" / path.parent.name / f"{path.stem}.npy"
                kept.parent.mkdir(parents=True, exist_ok=True)
                np.save(kept, (frames / 255).astype(np.float16))
    return made
