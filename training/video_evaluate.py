"""Measure the exported models: `python video_evaluate.py RUN MODELS tiny-wan-large --sheet sheet.png` prints figures.

RUN is needed for the emoji that clips are compared with; MODELS is the folder that `video_export.py` wrote.
"""

from __future__ import annotations

import argparse
import json
import random
from copy import deepcopy
from pathlib import Path

import torch
from common import psnr
from data import fetch
from PIL import Image, ImageDraw
from torch.nn import functional as F
from video_autoencoder import quality
from video_data import FRAMES, MOTIONS, Scene, caption, is_held, load, names, render, sprites
from video_export import assembled
from video_text import LENGTH
from video_whole import whole


def draw(pipe, prompts: list[str], seeds: list[int], steps: int = 50, guidance: float = 5.0, **size: int):
    """Clips in [0, 1], N x T x 3 x height x width, each from a seed of its own, so that batching changes nothing."""
    made = []
    settings = {"height": 64, "width": 64, "num_frames": FRAMES, "max_sequence_length": LENGTH} | size
    for start in range(0, len(prompts), 8):
        part = slice(start, start + 8)
        made.append(
            pipe(
                prompts[part],
                num_inference_steps=steps,
                guidance_scale=guidance,
                generator=[torch.Generator().manual_seed(seed) for seed in seeds[part]],
                output_type="pt",
                **settings,
            ).frames
        )
    return torch.cat(made)


def asked(count: int, held: bool, seed: int = 0) -> list[tuple[int, str]]:
    """Emoji and motions to ask for: every motion equally often, from those trained on or from those kept out."""
    rng, pairs = random.Random(seed), []
    for i in range(count):
        motion = list(MOTIONS)[i % len(MOTIONS)]
        fitting = [e for e in range(len(names())) if is_held(e, list(MOTIONS).index(motion)) == held]
        pairs.append((rng.choice(fitting), motion))
    return pairs


def reference(sprite: torch.Tensor, motion: str, which: list[int] | None = None) -> torch.Tensor:
    """The motion as the data have it, in the middle of the frame: both directions, slower and faster."""
    clips = []
    for way in (1, -1) if motion in ("sway", "swap") else (1,):
        for speed in (0.93, 1.07):
            scene, path = Scene((32, 32), 38, speed, way), MOTIONS[motion][1]
            clips.append(render(sprite, [path(scene, i / (FRAMES - 1)) for i in which or range(FRAMES)], 64, 64))
    return torch.stack(clips).permute(0, 1, 4, 2, 3).float() / 255


def framed(picture: torch.Tensor) -> torch.Tensor:
    """The object alone, cut out and brought to one size, so that place and size do not count."""
    solid = picture.amin(0) < 0.9
    rows, columns = solid.any(1).nonzero().flatten(), solid.any(0).nonzero().flatten()
    if len(rows) == 0:
        return torch.ones(3, 32, 32)
    cut = picture[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return F.interpolate(cut[None], (32, 32), mode="bilinear", antialias=True)[0]


def recognition(clips: torch.Tensor, pairs: list[tuple[int, str]], pictures: torch.Tensor) -> dict:
    """Whether the right emoji is the nearest of all, and among the nearest five, in the first and the last frame.

    Distance is Euclidean between cut-out objects; every emoji stands in the pose that the motion asks for.
    """
    hits: dict[str, list[bool]] = {"first top1": [], "first top5": [], "last top1": [], "last top5": []}
    for motion in MOTIONS:
        mine = [i for i, pair in enumerate(pairs) if pair[1] == motion]
        if not mine:
            continue
        known = torch.stack([reference(sprite, motion, [0, FRAMES - 1]) for sprite in pictures])
        for end, name in ((0, "first"), (1, "last")):
            bank = torch.stack([torch.stack([framed(p) for p in clip[:, end]]) for clip in known]).flatten(2)
            for i in mine:
                query = framed(clips[i, -end]).flatten()
                nearest = (bank - query).square().sum(-1).amin(1).argsort()
                hits[f"{name} top1"].append(nearest[0].item() == pairs[i][0])
                hits[f"{name} top5"].append(pairs[i][0] in nearest[:5].tolist())
    return {name: sum(values) / len(values) for name, values in hits.items()}


def motion_of(clip: torch.Tensor, sprite: torch.Tensor) -> str:
    """Which motion of this emoji the clip is nearest to: its path, size and angle over all frames at once."""

    def coarse(frames: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(frames, 4)

    shifted = [coarse(clip.roll((dy, dx), (-2, -1))) for dy in (-3, 0, 3) for dx in (-3, 0, 3)]
    queries, best = torch.stack(shifted).flatten(1), {}
    for motion in MOTIONS:
        known = torch.stack([coarse(frames) for frames in reference(sprite, motion)]).flatten(1)
        best[motion] = torch.cdist(queries, known).min().item()
    return min(best, key=best.__getitem__)


def judged(pipe, pictures: torch.Tensor, count: int, held: bool, **settings: float) -> dict:
    pairs = asked(count, held)
    prompts = [caption(names()[emoji], motion) for emoji, motion in pairs]
    clips = draw(pipe, prompts, [10_000 + i for i in range(count)], **settings)
    found = [motion_of(clip, pictures[emoji]) for clip, (emoji, _) in zip(clips, pairs, strict=True)]
    right = [seen == motion for seen, (_, motion) in zip(found, pairs, strict=True)]
    figures = recognition(clips, pairs, pictures) | {"motion": sum(right) / count}
    figures["wrong"] = [(p, seen) for p, seen, good in zip(prompts, found, right, strict=True) if not good]
    return figures


def steps_table(pipe, count: int = 8) -> dict:
    """PSNR of few steps against 50, mean over frames and clips."""
    prompts = [caption(names()[emoji], motion) for emoji, motion in asked(count, False, seed=1)]
    seeds = list(range(20_000, 20_000 + count))
    full = draw(pipe, prompts, seeds)
    few = {n: draw(pipe, prompts, seeds, n) for n in (5, 8, 10, 15, 25)}
    return {
        f"{n} against 50": psnr(made.flatten(0, 1) * 2 - 1, full.flatten(0, 1) * 2 - 1).mean().item()
        for n, made in few.items()
    }


def sheet(pipe, prompts: list[str], path: Path, **settings: float) -> None:
    """Every clip as a strip of nine frames with its caption above."""
    clips = draw(pipe, prompts, list(range(30_000, 30_000 + len(prompts))), **settings)
    rows, width = -(-len(prompts) // 2), 9 * 65 + 12
    page = Image.new("RGB", (2 * width, rows * 80), "gainsboro")
    pen = ImageDraw.Draw(page)
    for i, (prompt, clip) in enumerate(zip(prompts, clips, strict=True)):
        x, y = i % 2 * width, i // 2 * 80
        pen.text((x + 4, y + 2), prompt, fill="black")
        for k, frame in enumerate(clip[::2]):
            array = (frame * 255).round().byte().permute(1, 2, 0).numpy()
            page.paste(Image.fromarray(array), (x + 4 + 65 * k, y + 14))
    page.save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("name", choices=["tiny-wan", "tiny-wan-large"])
    parser.add_argument("--count", type=int, default=110, help="clips that are judged")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--guidance", type=float, default=5.0)
    parser.add_argument("--sheet", type=Path, help="write strips of 22 clips here")
    parser.add_argument("--only", choices=["recognition", "held", "steps", "autoencoder", "sheet"])
    args = parser.parse_args()

    torch.set_num_threads(1)
    pipe = assembled(args.models, args.name)
    pipe.set_progress_bar_config(disable=True)
    settings = {"steps": args.steps, "guidance": args.guidance}
    pictures, figures = sprites(fetch(args.run)), {}
    wanted = {args.only} if args.only else {"recognition", "held", "steps", "autoencoder", "sheet"}
    if "sheet" in wanted and args.sheet:
        pairs = asked(22, False, seed=2)
        sheet(pipe, [caption(names()[emoji], motion) for emoji, motion in pairs], args.sheet, **settings)
    if "autoencoder" in wanted:
        figures["autoencoder PSNR, held-out clips"] = quality(whole(deepcopy(pipe.vae)), load(args.run, "held")[0][::2])
    if "recognition" in wanted:
        figures["trained combinations"] = judged(pipe, pictures, args.count, False, **settings)
    if "held" in wanted:
        figures["held-out combinations"] = judged(pipe, pictures, args.count // 2, True, **settings)
    if "steps" in wanted:
        figures |= steps_table(pipe)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
