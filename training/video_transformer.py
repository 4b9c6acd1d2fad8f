"""A transformer trained with flow matching on the cached latents; the large one together with the text encoder.

`torchrun --nproc-per-node 2 video_transformer.py RUN large --minutes 60` leaves RUN/large.pt (resumable, averaged
weights inside). `small` afterwards reads captions with the text encoder of `large`, which both then share.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import torch
from common import Average, Clock, Log, Team, save
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanAttnProcessor
from muon import Muon
from torch import nn
from video_data import caption, load
from video_text import LENGTH, WIDTH, Reader

# Heads of 32 channels, blocks.
SIZES = {"large": (8, 6), "small": (5, 5)}
# Latent frames, clips a batch of the team, share at the beginning and at the end.
KINDS = [(1, 160, 0.7, 0.2), (3, 64, 0.1, 0.15), (4, 48, 0.0, 0.15), (5, 48, 0.2, 0.5)]


class Padded(WanAttnProcessor):
    """Cross attention in which the last word counts many times over.

    WanPipeline pads captions to 512 zeros by default, and `budcache.load` to 16: equal words that a logarithm on one of
    them stands in for exactly. Training sees both lengths at the price of the short one.
    """

    bias: torch.Tensor | None = None

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        return super().__call__(attn, hidden_states, encoder_hidden_states, self.bias, rotary_emb)


class Flow(nn.Module):
    """Captions and noisy latents to velocities, called as WanPipeline does."""

    def __init__(self, size: str) -> None:
        super().__init__()
        heads, blocks = SIZES[size]
        self.reader = Reader()
        self.transformer = WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=heads,
            attention_head_dim=32,
            in_channels=16,
            out_channels=16,
            text_dim=WIDTH,
            freq_dim=128,
            ffn_dim=2 * 32 * heads,
            num_layers=blocks,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=64,
        )
        # Blocks that start as the identity learn faster: no block speaks before its gates open.
        with torch.no_grad():
            quiet = [self.transformer.proj_out, self.transformer.condition_embedder.time_proj]
            quiet += [block.attn2.to_out[0] for block in self.transformer.blocks]
            for layer in quiet:
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)
            for block in self.transformer.blocks:
                block.scale_shift_table.zero_()

    def forward(self, x: torch.Tensor, t: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return self.transformer(x, 1000 * t, words, return_dict=False)[0]

    def pad(self, processor: Padded) -> None:
        """Let all cross attention share a processor, and with it the weight of padding."""
        for block in self.transformer.blocks:
            block.attn2.set_processor(processor)


class Clips:
    """Latents of one size and what they show."""

    def __init__(self, run: Path, name: str) -> None:
        parts = [torch.load(path, weights_only=True) for path in sorted((run / "latents").glob(f"{name}.*.pt"))]
        captions = load(run, name)[1]
        self.latents = torch.cat([part["latents"] for part in parts])
        self.captions = [captions[i] for part in parts for i in part["which"]]

    def draw(self, frames: int, size: int, dropout: float, rng: random.Random) -> tuple[torch.Tensor, list[str]]:
        """Beginnings of clips and their captions, some of them left out."""
        which = [rng.randrange(len(self.captions)) for _ in range(size)]
        said = ["" if rng.random() < dropout else caption(*self.captions[i], rng) for i in which]
        return self.latents[which, :, :frames].float(), said


def shifted(t: torch.Tensor, shift: float = 2.0) -> torch.Tensor:
    """More noise than logit-normal times: neighbouring frames say much about each other."""
    return shift * t / (1 + (shift - 1) * t)


def padding(size: int) -> torch.Tensor:
    """For half of the captions, the logarithm that makes the last of 16 words count as padding to 512."""
    bias = torch.zeros(size, 1, 1, LENGTH)
    bias[::2, ..., -1] = math.log(1 + 512 - LENGTH)
    return bias


def kind_of(progress: float, rng: random.Random) -> tuple[int, int]:
    """Latent frames and clips of the next batch: stills first, since they are cheap and teach what emoji look like."""
    late = min(1.0, 2.5 * progress)
    weights = [first + late * (last - first) for _, _, first, last in KINDS]
    return rng.choices(KINDS, weights)[0][:2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--busy", action="store_true", help="count minutes of processor time, not of the clock")
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--dropout", type=float, default=0.1, help="share of captions left out")
    args = parser.parse_args()

    torch.set_num_threads(1)
    team = Team()
    square, wide = Clips(args.run, "train"), Clips(args.run, "wide")
    torch.manual_seed(0)
    flow, padded = Flow(args.size), Padded()
    flow.pad(padded)
    if args.size == "small":
        flow.reader = averaged(args.run, "large").reader.requires_grad_(False)
    print(f"{sum(p.numel() for p in flow.transformer.parameters()) / 1e6:.2f} M parameters")
    parameters = [p for p in flow.parameters() if p.requires_grad]
    optimizer = Muon(flow, list(flow.transformer.blocks), args.rate, team)
    average = Average(flow, decay=0.998)
    step, clock = 0, Clock(args.minutes, busy=args.busy)
    checkpoint = args.run / f"{args.size}.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        flow.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.load_state_dict(state["average"])
        step, clock = state["step"], Clock(args.minutes, state["spent"], args.busy)
    log = Log(args.run / f"{args.size}.csv")
    torch.manual_seed(step * team.size + team.rank)
    shared, own = random.Random(step), random.Random(step * team.size + team.rank)
    running, count = 0.0, 0
    while True:
        rate = team.agreed(clock.cosine(args.rate, step, warmup=100))
        frames, size = kind_of(team.agreed(clock.spent / clock.total), shared)
        clips = wide if shared.random() < 0.1 else square
        clean, said = clips.draw(frames, size // team.size, args.dropout, own)
        padded.bias = padding(len(clean))
        t, noise = shifted(torch.randn(len(clean)).sigmoid()), torch.randn_like(clean)
        x = torch.lerp(clean, noise, t[:, None, None, None, None])
        loss = (flow(x, t, flow.reader(said)) - (noise - clean)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        team.share(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step(rate)
        average.update(flow)
        step += 1
        if frames == 5 and clips is square:  # the loss of stills and beginnings is another one
            running, count = running + loss.item(), count + 1
        done = bool(team.agreed(clock.done))
        if step % 50 == 0 and team.rank == 0:
            log.row(step=step, minutes=clock.spent / 60, loss=running / max(count, 1), rate=rate)
            running, count = 0.0, 0
        if (step % 50 == 0 or done) and team.rank == 0:
            state = {"model": flow.state_dict(), "optimizer": optimizer.state_dict()}
            save(state | {"average": average.state_dict(), "step": step, "spent": clock.spent}, checkpoint)
        if done:
            break


def averaged(run: Path, size: str) -> Flow:
    """The networks with the averaged weights of a checkpoint."""
    flow = Flow(size)
    state = torch.load(run / f"{size}.pt", weights_only=True)
    average = Average(flow, decay=0.0)
    average.load_state_dict(state["average"])
    average.copy_to(flow)
    return flow


if __name__ == "__main__":
    main()
