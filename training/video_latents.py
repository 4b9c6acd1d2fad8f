"""Encode every clip once: RUN/latents/train.pt and wide.pt, N x 16 x 5 x 8 x 8 (or 12), in float16.

The encoder is causal, so the first latents of a clip are those of its beginning: shorter clips come for free.
`--part 0/2` and `--part 1/2` share the work between two processes; each writes its own files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from common import save
from diffusers import AutoencoderKLWan
from video_data import load
from video_whole import encode, to_pixels, whole


def scale(vae: AutoencoderKLWan) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and deviation of every channel, shaped to go with latents."""
    return (
        torch.tensor(vae.config.latents_mean)[:, None, None, None],
        torch.tensor(vae.config.latents_std)[:, None, None, None],
    )


@torch.no_grad()
def encoded(vae: AutoencoderKLWan, frames: np.ndarray) -> torch.Tensor:
    """Latents of mean 0 and deviation 1."""
    mean, deviation = scale(vae)
    return (encode(vae, to_pixels(torch.from_numpy(np.array(frames)))).mode() - mean) / deviation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--part", default="0/1")
    args = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, args.part.split("/"))
    vae = whole(AutoencoderKLWan.from_pretrained(args.run / "vae").eval())
    (args.run / "latents").mkdir(exist_ok=True)
    for name in ("train", "wide"):
        clips, _ = load(args.run, name)
        mine = range(part, len(clips), parts)
        latents = torch.cat([encoded(vae, clips[i : i + 1]).half() for i in mine])
        save({"latents": latents, "which": list(mine)}, args.run / "latents" / f"{name}.{part}.pt")
        print(f"{name} {args.part}: {tuple(latents.shape)}, deviation {latents.float().std():.3f}", flush=True)


if __name__ == "__main__":
    main()
