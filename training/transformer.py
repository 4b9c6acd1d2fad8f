"""The transformer and the text encoders, trained together with flow matching on the cached latents.

`python transformer.py RUN --minutes 60` leaves RUN/flow.pt (resumable, averaged weights inside).
The guidance embedding sees 1 here, which means "as the data are"; `distil.py` teaches it the rest.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from common import Average, Clock, Log, Team, save
from data import load
from diffusers import FluxTransformer2DModel
from muon import Muon
from text import clip_encoder, clip_tokenizer, spoken, t5_encoder, t5_tokenizer
from torch import nn
from transformers import CLIPTokenizer, PreTrainedTokenizerFast


def tokenizers(run: Path, captions: list[list[str]]) -> tuple[CLIPTokenizer, PreTrainedTokenizerFast]:
    """Built once, then read: weights must meet the vocabulary they grew with."""
    if not (run / "tokenizer_2").exists():
        clip_tokenizer(captions).save_pretrained(run / "tokenizer")
        t5_tokenizer(captions).save_pretrained(run / "tokenizer_2")
    return (
        CLIPTokenizer.from_pretrained(run / "tokenizer"),
        PreTrainedTokenizerFast.from_pretrained(run / "tokenizer_2"),
    )


def image_ids(rows: int = 4, columns: int = 4) -> torch.Tensor:
    """Rotary positions of the packed latents, as FluxPipeline lays them out."""
    ids = torch.zeros(rows, columns, 3)
    ids[..., 1] += torch.arange(rows)[:, None]
    ids[..., 2] += torch.arange(columns)
    return ids.reshape(-1, 3)


class Flow(nn.Module):
    """Captions and noisy latents to velocities: the three trained networks, called as FluxPipeline does."""

    def __init__(self, clip: CLIPTokenizer, t5: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.tokenizers = clip, t5
        self.clip, self.t5 = clip_encoder(clip), t5_encoder(t5)
        width = self.t5.config.d_model
        self.transformer = FluxTransformer2DModel(
            num_layers=2,
            num_single_layers=4,
            attention_head_dim=32,
            num_attention_heads=6,
            joint_attention_dim=width,
            pooled_projection_dim=width,
            guidance_embeds=True,
            axes_dims_rope=(8, 12, 12),
        )
        self.image_ids, self.text_ids = image_ids(), torch.zeros(t5.model_max_length, 3)
        # Blocks that start as the identity learn faster: no block speaks before its gate opens.
        for name, layer in self.transformer.named_modules():
            if isinstance(layer, nn.Linear) and (".norm" in name or name in {"norm_out.linear", "proj_out"}):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def encode(self, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """One vector per caption, and one per word."""
        tokens = [
            t(
                captions,
                padding="max_length",
                truncation=True,
                max_length=t.model_max_length,
                return_tensors="pt",
            )
            for t in self.tokenizers
        ]
        pooled = self.clip(tokens[0].input_ids).pooler_output
        return pooled, self.t5(tokens[1].input_ids).last_hidden_state

    def forward(self, x: torch.Tensor, t: torch.Tensor, g: torch.Tensor, text: tuple) -> torch.Tensor:
        pooled, words = text
        return self.transformer(
            hidden_states=x,
            timestep=t,
            guidance=g,
            pooled_projections=pooled,
            encoder_hidden_states=words,
            img_ids=self.image_ids,
            txt_ids=self.text_ids,
            return_dict=False,
        )[0]


def sample_batch(latents: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which pictures, and their noisy latents, times and true velocities; either orientation."""
    chosen = torch.randint(len(latents), (size,))
    clean = latents[chosen, torch.randint(2, (size,))]
    t = torch.randn(size).sigmoid()  # logit-normal, as FLUX
    noise = torch.randn_like(clean)
    return chosen, torch.lerp(clean, noise, t[:, None, None]), t, noise - clean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--dropout", type=float, default=0.1, help="share of captions left out")
    args = parser.parse_args()

    team = Team()
    _, captions = load(args.run)
    latents = torch.load(args.run / "latents.pt", weights_only=True)
    torch.manual_seed(0)
    flow = Flow(*tokenizers(args.run, captions))
    print(f"{sum(p.numel() for p in flow.parameters()) / 1e6:.2f} M parameters")
    parameters = list(flow.parameters())
    blocks = [*flow.transformer.transformer_blocks, *flow.transformer.single_transformer_blocks]
    optimizer = Muon(flow, blocks, args.rate, team)
    average = Average(flow, decay=0.9995)
    step, clock = 0, Clock(args.minutes)
    checkpoint = args.run / "flow.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        flow.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.load_state_dict(state["average"])
        step, clock = state["step"], Clock(args.minutes, state["spent"])
    log = Log(args.run / "flow.csv")
    seed = step * team.size + team.rank
    torch.manual_seed(seed)
    rng = random.Random(seed)
    running = 0.0
    while True:
        rate = team.agreed(clock.cosine(args.rate, step))
        chosen, x, t, velocity = sample_batch(latents, args.batch // team.size)
        spoken_captions = ["" if rng.random() < args.dropout else spoken(captions[i], rng) for i in chosen.tolist()]
        predicted = flow(x, t, torch.ones_like(t), flow.encode(spoken_captions))
        loss = (predicted - velocity).square().mean()
        optimizer.zero_grad()
        loss.backward()
        team.share(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step(rate)
        average.update(flow)
        step += 1
        running += loss.item()
        done = bool(team.agreed(clock.done))
        if step % 50 == 0 and team.rank == 0:
            log.row(step=step, minutes=clock.spent / 60, loss=running / 50, rate=rate)
            running = 0.0
        if (step % 100 == 0 or done) and team.rank == 0:
            state = {"model": flow.state_dict(), "optimizer": optimizer.state_dict()}
            save(state | {"average": average.state_dict(), "step": step, "spent": clock.spent}, checkpoint)
        if done:
            break
    if team.rank == 0:
        log.plot("loss")


if __name__ == "__main__":
    main()
