"""Encode every clip once: RUN/latents/train.0000.pt and so on, N x 16 x 5 x 8 x 8 (12 for `wide`), in float16.

The encoder is causal, so the first latents of a clip are those of its beginning: shorter clips come for free.
Started again, it goes on with the shards that are missing; `--part 0/2` and `--part 1/2` share them between two
processes. The first third of the clips shows every combination once: training may begin with that.
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

SHARD = 100


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
    parser.add_argument("--share", type=float, default=1.0, help="of the clips, from the first one on")
    args = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, args.part.split("/"))
    vae = whole(AutoencoderKLWan.from_pretrained(args.run / "vae").eval())
    (args.run / "latents").mkdir(exist_ok=True)
    for name in ("train", "wide"):
        clips, _ = load(args.run, name)
        starts = range(0, round(args.share * len(clips)), SHARD)
        for start in list(starts)[part::parts]:
            path = args.run / "latents" / f"{name}.{start:04}.pt"
            if not path.exists():
                which = list(range(start, min(start + SHARD, len(clips))))
                latents = torch.cat([encoded(vae, clips[i : i + 1]).half() for i in which])
                save({"latents": latents, "which": which}, path)
                print(f"{path.name}: {tuple(latents.shape)}, deviation {latents.float().std():.3f}", flush=True)


if __name__ == "__main__":
    main()
