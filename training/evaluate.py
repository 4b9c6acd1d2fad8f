"""Measure the shipped files: `python evaluate.py RUN` prints the figures of the model card and writes a grid.

RUN is only needed for the training pictures that recognition compares with; the model is the one in the
package (or the one in `--folder`).
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from common import psnr
from data import load
from latents import encode
from PIL import Image, ImageDraw

from budcache import models


def draw(pipe, captions: list[str], seeds: list[int], steps: int = 28, guidance: float = 3.5) -> torch.Tensor:
    """Pictures in [-1, 1], each from a seed of its own, so that batching changes nothing."""
    pictures = []
    for start in range(0, len(captions), 25):
        part = slice(start, start + 25)
        made = pipe(
            captions[part],
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds[part]],
            output_type="pt",
        )
        pictures.append(made.images * 2 - 1)
    return torch.cat(pictures)


def recognition(pipe, pixels: torch.Tensor, captions: list[list[str]], guidance: float) -> dict:
    """How often the right emoji is the nearest, and among the nearest five, of all the model was trained on.

    Distance is Euclidean in the autoencoder's latent space; a mirror image counts as the picture it mirrors.
    """
    chosen = random.Random(0).sample(range(len(captions)), 200)
    made = draw(pipe, [captions[i][0] for i in chosen], [10_000 + i for i in chosen], guidance=guidance)
    known = [encode(pipe.vae, side).flatten(1) for side in (pixels, pixels.flip(-1))]
    query = encode(pipe.vae, made).flatten(1)
    distance = torch.stack([torch.cdist(query, side) for side in known]).amin(0)
    nearest = distance.argsort(dim=1)
    hits = nearest == torch.tensor(chosen)[:, None]
    missed = [(captions[i][0], captions[nearest[k, 0]][0]) for k, i in enumerate(chosen) if not bool(hits[k, 0])]
    return {
        "top1": hits[:, :1].any(1).float().mean().item(),
        "top5": hits[:, :5].any(1).float().mean().item(),
        "missed": missed,
    }


def steps_table(pipe) -> dict:
    """PSNR of few steps against 28, and of 28 against 200, mean over pictures of the evaluation prompts."""
    prompts = models.prompts("tiny-flux", "evaluation")[:32]
    seeds = list(range(20_000, 20_000 + len(prompts)))
    made = {steps: draw(pipe, prompts, seeds, steps) for steps in (4, 5, 6, 8, 12, 20, 28, 200)}
    table = {f"{n} against 28": psnr(made[n], made[28]).mean().item() for n in (4, 5, 6, 8, 12, 20)}
    return table | {"28 against 200": psnr(made[28], made[200]).mean().item()}


def grid(pipe, captions: list[str], path: Path, columns: int = 8, **settings: float) -> None:
    """A sheet of pictures with their captions underneath."""
    made = draw(pipe, captions, list(range(30_000, 30_000 + len(captions))), **settings)
    rows = -(-len(captions) // columns)
    sheet = Image.new("RGB", (columns * 96, rows * 84), "white")
    pen = ImageDraw.Draw(sheet)
    for i, (caption, picture) in enumerate(zip(captions, made, strict=True)):
        x, y = i % columns * 96, i // columns * 84
        array = ((picture + 1) * 127.5).round().byte().permute(1, 2, 0).numpy()
        sheet.paste(Image.fromarray(array), (x + 16, y + 2))
        pen.text((x + 48, y + 74), caption[:17], fill="black", anchor="mm")
    sheet.quantize(128).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--folder", default="tiny-flux", help="another pipeline folder than the shipped one")
    parser.add_argument("--guidance", type=float, default=3.5)
    parser.add_argument("--grid", type=Path, help="write the 24 sample pictures here")
    parser.add_argument("--only", choices=["recognition", "steps", "autoencoder", "grid"])
    args = parser.parse_args()

    pipe = models.load(args.folder)
    pipe.set_progress_bar_config(disable=True)
    pixels, captions = load(args.run)
    figures: dict = {}
    wanted = {args.only} if args.only else {"recognition", "steps", "autoencoder", "grid"}
    if "autoencoder" in wanted:
        with torch.no_grad():
            decoded = torch.cat([pipe.vae(batch).sample.clamp(-1, 1) for batch in pixels.split(64)])
        figures["autoencoder PSNR"] = psnr(decoded, pixels).mean().item()
    if "recognition" in wanted:
        figures |= recognition(pipe, pixels, captions, args.guidance)
    if "steps" in wanted:
        figures |= steps_table(pipe)
    if "grid" in wanted and args.grid:
        grid(pipe, models.prompts("tiny-flux", "evaluation")[:24], args.grid, guidance=args.guidance)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
