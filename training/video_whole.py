"""Wan's autoencoder on whole clips: diffusers feeds it four frames at a time and keeps what convolutions look back on.

The result is the same, since the convolutions are causal, but one call on everything is several times faster and
a plain thing to differentiate. `python video_whole.py RUN` checks on RUN/vae that both ways agree.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanResample, patchify, unpatchify
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch.nn import functional as F
from video_data import load


class WholeResample(WanResample):
    """Time is halved or doubled for all frames but the first, which stands alone."""

    def forward(self, x: torch.Tensor, feat_cache: object = None, feat_idx: object = None) -> torch.Tensor:
        b, c, t = x.shape[:3]
        if self.mode == "upsample3d" and t > 1:
            later = self.time_conv(x[:, :, 1:]).unflatten(1, (2, c))
            later = torch.stack([later[:, 0], later[:, 1]], 3).flatten(2, 3)
            x = torch.cat([x[:, :, :1], later], 2)
        t = x.shape[2]
        x = self.resample(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (b, t)).transpose(1, 2)
        if self.mode == "downsample3d" and t > 1:
            x = torch.cat([x[:, :, :1], self.time_conv(x)], 2)
        return x


class StillConv(WanCausalConv3d):
    """A still has no past: a third of the weights, those of the frame itself, do all the work."""

    def forward(self, x: torch.Tensor, cache_x: object = None) -> torch.Tensor:
        if x.shape[2] > 1 or not self._padding[4]:
            return super().forward(x)
        still = F.conv2d(x[:, :, 0], self.weight[:, :, -1], self.bias, padding=(self._padding[2], self._padding[0]))
        return still[:, :, None]


def whole(vae: AutoencoderKLWan) -> AutoencoderKLWan:
    """The same module, its parts taught to take whole clips; `save_pretrained` writes the stock one."""
    for module in vae.modules():
        if type(module) is WanResample:
            module.__class__ = WholeResample
        elif type(module) is WanCausalConv3d:
            module.__class__ = StillConv
    return vae


def encode(vae: AutoencoderKLWan, pixels: torch.Tensor) -> DiagonalGaussianDistribution:
    """Clips in [-1, 1], N x 3 x frames x height x width, to the distribution of their latents."""
    return DiagonalGaussianDistribution(vae.quant_conv(vae.encoder(patchify(pixels, vae.config.patch_size))))


def decode(vae: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
    """Latents to clips, not cut to [-1, 1]."""
    return unpatchify(vae.decoder(vae.post_quant_conv(latents), first_chunk=True), vae.config.patch_size)


def to_pixels(frames: torch.Tensor) -> torch.Tensor:
    """uint8, N x T x height x width x 3, to what the autoencoder reads."""
    return frames.permute(0, 4, 1, 2, 3).float() / 127.5 - 1


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    torch.set_num_threads(1)
    stock = AutoencoderKLWan.from_pretrained(run / "vae")
    fast = whole(AutoencoderKLWan.from_pretrained(run / "vae"))
    clips, _ = load(run, "held")
    for frames in (1, 9, 17):
        pixels = to_pixels(torch.from_numpy(clips[:2, :frames].copy()))
        latents = stock.encode(pixels).latent_dist.mode()
        torch.testing.assert_close(encode(fast, pixels).mode(), latents, rtol=1e-4, atol=1e-4)
        decoded = stock.decode(latents).sample
        torch.testing.assert_close(decode(fast, latents).clamp(-1, 1), decoded, rtol=1e-4, atol=1e-4)
    print("whole clips give what chunks give")


if __name__ == "__main__":
    main()
