"""The autoencoder: clips of 64 x 64 pixels to latents of 8 x 8 and a quarter of the frames, 16 channels.

`torchrun --nproc-per-node 2 video_autoencoder.py RUN --minutes 35` leaves RUN/vae (diffusers format, averaged weights,
mean and deviation of every channel in its configuration). It begins with stills, which are cheap, and goes on with
short clips; a few are whole. `--decoder-only` freezes the encoder, so that cached latents stay valid.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from common import Average, Clock, Log, Team, psnr, save
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResidualBlock
from muon import Muon
from torch import nn
from video_data import load
from video_whole import WholeResample, decode, encode, to_pixels, whole

# Frames, clips a batch and process, side of the crop, share after the opening with stills alone.
KINDS = [(1, 16, 64, 0.25), (5, 4, 48, 0.3), (9, 3, 48, 0.3), (17, 1, 64, 0.15)]


def build() -> AutoencoderKLWan:
    """Wan 2.2's kind of autoencoder: 2 x 2 patches spare the slowest level, and shortcuts around every level carry
    colours through from the first step on. Without them, 700 steps later all emoji were still brown."""
    vae = AutoencoderKLWan(
        base_dim=24,
        decoder_base_dim=32,
        z_dim=16,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[True, True],
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=8,
        latents_mean=[0.0] * 16,
        latents_std=[1.0] * 16,
    )
    # Frames begin by ignoring each other, so that what stills teach holds for clips, and blocks by doing nothing.
    with torch.no_grad():
        for module in vae.modules():
            if isinstance(module, nn.Conv3d) and module.kernel_size == (3, 3, 3):
                module.weight[:, :, :2] = 0
            if isinstance(module, WanResidualBlock):
                nn.init.zeros_(module.conv2.weight)
    return start_in_time(whole(vae))


@torch.no_grad()
def start_in_time(vae: AutoencoderKLWan) -> AutoencoderKLWan:
    """Halving time begins as a mean of three frames, doubling it as repetition."""
    for module in vae.modules():
        if isinstance(module, WholeResample) and hasattr(module, "time_conv"):
            conv = module.time_conv
            same = torch.eye(conv.in_channels).repeat(conv.out_channels // conv.in_channels, 1)
            nn.init.zeros_(conv.bias)
            conv.weight.mul_(0.1)
            if "down" in module.mode:
                conv.weight.add_(same[:, :, None, None, None] / 3)
            else:
                conv.weight[:, :, -1].add_(same[:, :, None, None])
    return vae


def loss_of(decoded: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Squared error for fidelity, absolute error for sharpness, differences of neighbours for edges and motion."""
    error = decoded - pixels
    edges = (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()) / 2
    motion = error.diff(dim=2).abs().mean() / 2 if error.shape[2] > 1 else 0
    return error.abs().mean() + 2 * error.square().mean() + edges + motion


def batch_of(clips: np.ndarray, opening: bool, rng: random.Random) -> torch.Tensor:
    """Clips of one kind, cut anywhere in time and space, half of them mirrored."""
    length, size, side, _ = KINDS[0] if opening else rng.choices(KINDS, [kind[-1] for kind in KINDS])[0]
    cut = []
    for _ in range(size):
        start, top, left = rng.randint(0, 17 - length), rng.randint(0, 64 - side), rng.randint(0, 64 - side)
        piece = clips[rng.randrange(len(clips)), start : start + length, top : top + side, left : left + side]
        cut.append(piece[:, :, ::-1] if rng.random() < 0.5 else piece)
    return to_pixels(torch.from_numpy(np.stack(cut)))


@torch.no_grad()
def quality(vae: AutoencoderKLWan, clips: np.ndarray) -> float:
    """Mean PSNR over frames of clips never trained on."""
    values = []
    for i in range(len(clips)):
        pixels = to_pixels(torch.from_numpy(clips[i : i + 1].copy()))
        decoded = decode(vae, encode(vae, pixels).mode()).clamp(-1, 1)
        values.append(psnr(decoded[0].transpose(0, 1), pixels[0].transpose(0, 1)))
    return torch.cat(values).mean().item()


@torch.no_grad()
def finish(vae: AutoencoderKLWan, clips: np.ndarray, folder: Path, encoder_changed: bool) -> None:
    """Note what brings latents to mean 0 and deviation 1, as Wan's configuration does, and write the stock model."""
    if encoder_changed:
        sample = torch.from_numpy(clips[:: max(1, len(clips) // 100)])
        latents = torch.cat([encode(vae, to_pixels(part)).mode() for part in sample.split(4)])
        mean, deviation = latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))
        vae.register_to_config(latents_mean=mean.tolist(), latents_std=deviation.tolist())
    vae.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=35)
    parser.add_argument("--busy", action="store_true", help="count minutes of processor time, not of the clock")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--kl", type=float, default=3e-4)
    parser.add_argument("--opening", type=float, default=0.15, help="share of the time that sees stills alone")
    parser.add_argument("--decoder-only", action="store_true")
    parser.add_argument("--noise", type=float, default=0.15, help="on latents, relative, with --decoder-only")
    args = parser.parse_args()

    torch.set_num_threads(1)
    team = Team()
    clips, _ = load(args.run, "train")
    held, _ = load(args.run, "held")
    kind = "decoder" if args.decoder_only else "autoencoder"
    checkpoint = args.run / f"{kind}.pt"
    torch.manual_seed(0)
    vae = whole(AutoencoderKLWan.from_pretrained(args.run / "vae")) if args.decoder_only else build()
    trained = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
    if args.decoder_only:
        vae.encoder.requires_grad_(False)
        vae.quant_conv.requires_grad_(False)
    else:
        trained = list(vae.parameters())
    print(f"{sum(p.numel() for p in vae.parameters()) / 1e6:.2f} M parameters")
    optimizer = Muon(vae, [vae.encoder, vae.decoder], args.rate, team)
    average = Average(vae, decay=0.998)
    step, clock = 0, Clock(args.minutes, busy=args.busy)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        vae.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.load_state_dict(state["average"])
        step, clock = state["step"], Clock(args.minutes, state["spent"], args.busy)
    log = Log(args.run / f"{kind}.csv")
    torch.manual_seed(step * team.size + team.rank)  # a resumed run draws fresh noise
    shared, own = random.Random(step), random.Random(step * team.size + team.rank)
    running = 0.0
    while True:
        rate = team.agreed(clock.cosine(args.rate, step, warmup=100))
        opening = bool(team.agreed(clock.spent < args.opening * clock.total)) and not args.decoder_only
        own.seed(shared.random())  # every process draws the same kind of batch, so that all have the same gradients ...
        pixels = batch_of(clips[team.rank :: team.size], opening, own)  # ... of its own part of the clips
        with torch.set_grad_enabled(not args.decoder_only):
            posterior = encode(vae, pixels)
        latents = posterior.sample()
        if args.decoder_only:  # drawn latents are less exact than encoded ones: the decoder learns to see through that
            level = args.noise * torch.rand(len(latents), 1, 1, 1, 1)
            scale = torch.tensor(vae.config.latents_std)[:, None, None, None]
            latents = latents + level * scale * torch.randn_like(latents)
        loss = loss_of(decode(vae, latents), pixels)
        kl = (posterior.mean.square() + posterior.var - 1 - posterior.logvar).mean() / 2
        optimizer.zero_grad()
        (loss + (0 if args.decoder_only else args.kl) * kl).backward()
        team.share(trained)
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step(rate)
        average.update(vae)
        step += 1
        running += loss.item()
        done = bool(team.agreed(clock.done))
        if step % 50 == 0 and team.rank == 0:
            log.row(step=step, minutes=clock.spent / 60, loss=running / 50, kl=kl.item(), rate=rate)
            running = 0.0
        if (step % 50 == 0 or done) and team.rank == 0:
            state = {"model": vae.state_dict(), "optimizer": optimizer.state_dict()}
            save(state | {"average": average.state_dict(), "step": step, "spent": clock.spent}, checkpoint)
        if done:
            break
    if team.rank == 0:
        average.copy_to(vae)
        finish(vae.eval(), clips, args.run / "vae", not args.decoder_only)
        print(f"PSNR {quality(vae, held[::4]):.2f} dB on held-out clips after {step} steps")


if __name__ == "__main__":
    main()
