"""Encode every picture and its mirror image once: RUN/latents.pt, N x 2 x 16 tokens x 64 channels."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from data import load
from diffusers import AutoencoderKL, FluxPipeline


@torch.no_grad()
def encode(vae: AutoencoderKL, pixels: torch.Tensor) -> torch.Tensor:
    """Pixels in [-1, 1] to latents of about unit variance."""
    latents = torch.cat([vae.encode(batch).latent_dist.mode() for batch in pixels.split(64)])
    return (latents - vae.config.shift_factor) * vae.config.scaling_factor


def pack(latents: torch.Tensor) -> torch.Tensor:
    return FluxPipeline._pack_latents(latents, *latents.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    vae = AutoencoderKL.from_pretrained(run / "vae").eval()
    pixels, _ = load(run)
    both = torch.stack([pack(encode(vae, pixels)), pack(encode(vae, pixels.flip(-1)))], dim=1)
    torch.save(both, run / "latents.pt")
    print(f"{tuple(both.shape)}, mean {both.mean():.3f}, deviation {both.std():.3f}")


if __name__ == "__main__":
    main()
