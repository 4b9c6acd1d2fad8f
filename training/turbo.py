"""Eight steps for twenty-eight: a LoRA that makes tiny-flux a few-step model, as Hyper-SD does for FLUX.

`torchrun --nproc-per-node 2 turbo.py RUN --minutes 40` reads the shipped tiny-flux and RUN's captions and leaves
RUN/turbo.safetensors, in the format of `load_lora_weights`. Trajectory distillation in three parts:

1. 28-step runs of the model itself are kept at the noise levels of an 8-step run. Between two of its levels a run of
   Euler's method is a straight line, so every level in between is known exactly.
2. From each of these states the student learns the one velocity that leads to the next.
3. The student runs its own eight steps, gradients through all of them, and learns to end where the 28 steps ended.
   What it does wrong early it then mends late.

It learns a few thousand runs by heart, so more runs are worth more than more time on them: `--start LORA --seed 1`
goes on from a LoRA that was trained before, on other runs and with the third part alone.
"""

from __future__ import annotations

import argparse
import itertools
import random
from pathlib import Path

import torch
from common import Average, Clock, Log, Team, save
from data import load
from diffusers import FluxPipeline
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from text import spoken
from torch import nn

from budcache import models

FULL, SHORT = 28, 8
TARGETS = r".*(to_q|to_k|to_v|to_out\.0|add_._proj|to_add_out|net\.0\.proj|net\.2|proj_mlp|proj_out)"
GUIDANCE = 3.5
SMALL = 3e-4  # a mean squared error of latents that is not worth making smaller
SHARE = 0.35  # of the time, for single steps; the rest is for whole runs


class Model(nn.Module):
    """tiny-flux as a function of latents, noise level, captions and guidance."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.pipe = models.load("tiny-flux")
        self.transformer = self.pipe.transformer.requires_grad_(False)
        config = LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS, init_lora_weights="gaussian")
        self.transformer.add_adapter(config)
        self.ids = FluxPipeline._prepare_latent_image_ids(1, 4, 4, "cpu", torch.float32)

    def levels(self, steps: int) -> torch.Tensor:
        """The effective noise levels of a run, as the pipeline has them."""
        scheduler = self.pipe.scheduler
        settings = {name: scheduler.config[name] for name in ("base_image_seq_len", "max_image_seq_len")}
        mu = calculate_shift(16, *settings.values(), scheduler.config.base_shift, scheduler.config.max_shift)
        scheduler.set_timesteps(sigmas=torch.linspace(1, 1 / steps, steps).tolist(), mu=mu)
        return scheduler.sigmas.float()

    @torch.no_grad()
    def read(self, captions: list[str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.pipe.encode_prompt(captions, None)

    def forward(self, x: torch.Tensor, sigma: torch.Tensor, text: tuple, guidance: torch.Tensor) -> torch.Tensor:
        words, pooled, ids = text
        return self.transformer(
            hidden_states=x,
            timestep=sigma.expand(len(x)),
            guidance=guidance,
            pooled_projections=pooled,
            encoder_hidden_states=words,
            txt_ids=ids,
            img_ids=self.ids,
            return_dict=False,
        )[0]


def between(states: list[torch.Tensor], own: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """A run's states at other levels than its own: N x levels x tokens x channels."""
    found = []
    for level in wanted:
        k = int((own[:-1] >= level).sum().clamp(1, len(own) - 1)) - 1
        share = (own[k] - level) / (own[k] - own[k + 1])
        found.append(torch.lerp(states[k], states[k + 1], share))
    return torch.stack(found, 1)


@torch.no_grad()
def record(model: Model, captions: list[list[str]], count: int, seed: int) -> dict:
    """28-step runs of the plain model, kept at the levels of eight steps."""
    rng, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    full, short, kept = model.levels(FULL), model.levels(SHORT), {"states": [], "said": [], "guidance": []}
    model.transformer.disable_adapters()
    for _ in range(0, count, 64):
        said = [spoken(rng.choice(captions), rng) for _ in range(64)]
        guidance = torch.tensor([GUIDANCE if rng.random() < 0.75 else rng.uniform(1, 7) for _ in said])
        text, states = model.read(said), [torch.randn(64, 16, 64, generator=noise)]
        for here, there in itertools.pairwise(full):
            states.append(states[-1] + (there - here) * model(states[-1], here, text, guidance))
        kept["states"].append(between(states, full, short).half())
        kept["said"] += said
        kept["guidance"].append(guidance)
    model.transformer.enable_adapters()
    return {"states": torch.cat(kept["states"]), "said": kept["said"], "guidance": torch.cat(kept["guidance"])}


def single(model: Model, levels: torch.Tensor, states: torch.Tensor, text: tuple, guidance: torch.Tensor, i: int):
    """Error of one step from a state of the full run, in units of the latents."""
    step = levels[i + 1] - levels[i]
    landed = states[:, i] + step * model(states[:, i], levels[i], text, guidance)
    return (landed - states[:, i + 1]).square().mean() * SHORT


def whole(model: Model, levels: torch.Tensor, states: torch.Tensor, text: tuple, guidance: torch.Tensor):
    """Error of the student's own run: where it ends, and a little where it goes along.

    In logarithms, so that a typical picture counts as much as one that is far off: quality is measured in decibels.
    """
    x, along = states[:, 0], 0.0
    for i in range(SHORT):
        x = x + (levels[i + 1] - levels[i]) * model(x, levels[i], text, guidance)
        along = along + (x - states[:, i + 1]).square().mean((1, 2)) / SHORT
    final = (x - states[:, -1]).square().mean((1, 2))
    return (final + SMALL).log().mean() + 0.1 * (along + SMALL).log().mean()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--busy", action="store_true", help="count minutes of processor time, not of the clock")
    parser.add_argument("--runs", type=int, default=3072, help="full runs that each process records")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the runs: others have other captions and noise")
    parser.add_argument("--start", type=Path, help="a LoRA to go on from, on whole runs only")
    args = parser.parse_args()

    torch.set_num_threads(1)
    team = Team()
    torch.manual_seed(0)
    model, (_, captions) = Model(args.rank), load(args.run)
    seed = args.seed * team.size + team.rank
    recorded = args.run / f"turbo-runs-{seed}.pt"
    if not recorded.exists():
        save(record(model, captions, args.runs, seed), recorded)
    runs, levels = torch.load(recorded, weights_only=True), model.levels(SHORT)
    layers = [p for p in model.parameters() if p.requires_grad]
    print(f"{len(runs['said'])} runs, {sum(p.numel() for p in layers) / 1e6:.2f} M parameters", flush=True)
    optimizer = torch.optim.AdamW(layers, lr=args.rate, betas=(0.9, 0.99), weight_decay=0.0)
    if args.start:
        started = {name.removeprefix("transformer."): value for name, value in load_file(args.start).items()}
        set_peft_model_state_dict(model.transformer, started)
    share = 0 if args.start else SHARE
    average = Average(nn.ParameterList(layers), decay=0.995)
    step, clock = 0, Clock(args.minutes, busy=args.busy)
    checkpoint, log = args.run / "turbo.pt", Log(args.run / "turbo.csv")
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        for layer, value in zip(layers, state["layers"], strict=True):
            layer.data.copy_(value)
        optimizer.load_state_dict(state["optimizer"])
        average.load_state_dict(state["average"])
        step, clock = state["step"], Clock(args.minutes, state["spent"], args.busy)
    rng, running = random.Random(step * team.size + team.rank), 0.0
    shared = random.Random(step)
    while True:
        rate = team.agreed(clock.cosine(args.rate, step, warmup=50))
        alone = bool(team.agreed(clock.spent < share * clock.total))
        which = [rng.randrange(len(runs["said"])) for _ in range(48 if alone else 16)]
        states, guidance = runs["states"][which].float(), runs["guidance"][which]
        text = model.read([runs["said"][i] for i in which])
        given = (model, levels, states, text, guidance)
        loss = single(*given, shared.randrange(SHORT)) if alone else whole(*given)
        optimizer.zero_grad()
        loss.backward()
        team.share(layers)
        torch.nn.utils.clip_grad_norm_(layers, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        average.update(nn.ParameterList(layers))
        step, running = step + 1, running + loss.item()
        done = bool(team.agreed(clock.done))
        if step % 50 == 0 and team.rank == 0:
            log.row(step=step, minutes=clock.spent / 60, loss=running / 50, rate=rate)
            running = 0.0
        if (step % 50 == 0 or done) and team.rank == 0:
            state = {"layers": [p.detach() for p in layers], "optimizer": optimizer.state_dict()}
            save(state | {"average": average.state_dict(), "step": step, "spent": clock.spent}, checkpoint)
        if done:
            break
    if team.rank == 0:
        average.copy_to(nn.ParameterList(layers))
        weights = get_peft_model_state_dict(model.transformer)
        halved = {f"transformer.{name}": value.half().contiguous() for name, value in weights.items()}
        save_file(halved, args.run / "turbo.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
