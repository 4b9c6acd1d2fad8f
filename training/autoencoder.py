"""The autoencoder: 64x64 pixels to 8x8 latents of 16 channels, trained on the emoji and their mirror images.

`python autoencoder.py RUN --minutes 30` leaves RUN/vae (diffusers format, averaged weights, latents scaled to
unit variance). `--decoder-only` goes on with the encoder frozen, so that latents cached meanwhile stay valid.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from common import Average, Clock, Log, psnr, save
from data import load
from diffusers import AutoencoderKL


def build() -> AutoencoderKL:
    """One resnet a level instead of two buys width at the low resolutions, where it is cheap."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 64, 96),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=8,
        sample_size=64,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def loss_of(decoded: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Squared error for fidelity, absolute error for sharpness, differences of neighbours for edges."""
    error = decoded - pixels
    edges = (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()) / 2
    return error.abs().mean() + 2 * error.square().mean() + edges


@torch.no_grad()
def rescale(vae: AutoencoderKL, pixels: torch.Tensor) -> None:
    """Note in the configuration the factors that give latents mean 0 and variance 1."""
    latents = torch.cat([vae.encode(batch).latent_dist.mode() for batch in pixels.split(64)])
    vae.register_to_config(scaling_factor=1 / latents.std().item(), shift_factor=latents.mean().item())


@torch.no_grad()
def quality(vae: AutoencoderKL, pixels: torch.Tensor) -> float:
    return torch.cat([psnr(vae(batch).sample.clamp(-1, 1), batch) for batch in pixels.split(64)]).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1.5e-3)
    parser.add_argument("--kl", type=float, default=1e-4)
    parser.add_argument("--decoder-only", action="store_true")
    parser.add_argument("--noise", type=float, default=0.1, help="on latents, relative, with --decoder-only")
    args = parser.parse_args()

    torch.manual_seed(0)
    pixels, _ = load(args.run)
    pixels = torch.cat([pixels, pixels.flip(-1)]).to(memory_format=torch.channels_last)
    kind = "decoder" if args.decoder_only else "autoencoder"
    checkpoint = args.run / f"{kind}.pt"
    vae = AutoencoderKL.from_pretrained(args.run / "vae") if args.decoder_only else build()
    vae = vae.to(memory_format=torch.channels_last)
    trained = vae.decoder if args.decoder_only else vae
    optimizer = torch.optim.AdamW(trained.parameters(), lr=args.rate, betas=(0.9, 0.99), weight_decay=0.0)
    average = Average(trained, decay=0.998)
    step, clock = 0, Clock(args.minutes)
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        trained.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.load_state_dict(state["average"])
        step, clock = state["step"], Clock(args.minutes, state["spent"])
    log = Log(args.run / f"{kind}.csv")
    encoded = None
    if args.decoder_only:
        with torch.no_grad():
            posteriors = [vae.encode(batch).latent_dist for batch in pixels.split(64)]
        encoded = torch.cat([p.mean for p in posteriors]), torch.cat([p.std for p in posteriors])
        scale = encoded[0].std()

    torch.manual_seed(step)  # a resumed run draws fresh batches, the same ones every time
    running = 0.0
    while not clock.done:
        rate = clock.cosine(args.rate, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        chosen = torch.randint(len(pixels), (args.batch,))
        batch = pixels[chosen]
        if encoded is None:
            posterior = vae.encode(batch).latent_dist
            latents, kl = posterior.sample(), posterior.kl().mean() / posterior.mean[0].numel()
        else:
            mean, std = encoded[0][chosen], encoded[1][chosen]
            # Drawn latents are less exact than encoded ones: the decoder learns to see through that.
            std = std + args.noise * scale * torch.rand(args.batch, 1, 1, 1)
            latents, kl = mean + std * torch.randn_like(mean), torch.zeros(())
        loss = loss_of(vae.decode(latents).sample, batch)
        optimizer.zero_grad(set_to_none=True)
        (loss + args.kl * kl).backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        average.update(trained)
        step += 1
        running += loss.item()
        if step % 100 == 0:
            log.row(step=step, minutes=clock.spent / 60, loss=running / 100, kl=kl.item(), rate=rate)
            running = 0.0
        if step % 500 == 0:
            state = {"model": trained.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"average": average.state_dict(), "step": step, "spent": clock.spent}
            save(state, checkpoint)

    average.copy_to(trained)
    vae.eval()
    if not args.decoder_only:
        rescale(vae, pixels)
    vae.save_pretrained(args.run / "vae")
    log.plot("loss")
    print(f"PSNR {quality(vae, pixels[: len(pixels) // 2]):.2f} dB after {step} steps")


if __name__ == "__main__":
    main()
