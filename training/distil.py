"""Guidance into the guidance embedding: one call then gives what two calls and an extrapolation gave before.

`python distil.py RUN --minutes 15` goes from the averages in RUN/flow.pt to RUN/distilled.pt. The target is
v_uncond + g (v_cond - v_uncond) = v_cond + (g - 1) (v_cond - v_uncond), g drawn from 1 to 7. The difference
comes from the teacher, that frozen average. The first v_cond comes from the data: it is the same in the mean,
and the student goes on learning pictures while it learns guidance.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from common import Average, Clock, Log, Team, save
from data import load
from muon import Muon
from text import spoken
from transformer import Flow, sample_batch, tokenizers


def averaged(run: Path, checkpoint: str) -> Flow:
    """The networks with the averaged weights of a checkpoint."""
    _, captions = load(run)
    flow = Flow(*tokenizers(run, captions))
    state = torch.load(run / checkpoint, weights_only=True)
    average = Average(flow, decay=0.0)
    average.load_state_dict(state["average"])
    average.copy_to(flow)
    return flow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--dropout", type=float, default=0.1, help="share of captions left out")
    args = parser.parse_args()

    team = Team()
    _, captions = load(args.run)
    latents = torch.load(args.run / "latents.pt", weights_only=True)
    teacher, student = averaged(args.run, "flow.pt"), averaged(args.run, "flow.pt")
    teacher.requires_grad_(False)
    parameters = list(student.parameters())
    blocks = [*student.transformer.transformer_blocks, *student.transformer.single_transformer_blocks]
    optimizer = Muon(student, blocks, args.rate, team)
    average = Average(student, decay=0.998)
    step, clock = 0, Clock(args.minutes)
    checkpoint = args.run / "distilled.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        student.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        average.load_state_dict(state["average"])
        step, clock = state["step"], Clock(args.minutes, state["spent"])
    log = Log(args.run / "distilled.csv")
    seed = step * team.size + team.rank
    torch.manual_seed(seed)
    rng = random.Random(seed)
    size = args.batch // team.size
    running = 0.0
    while True:
        rate = team.agreed(clock.cosine(args.rate, step, warmup=50))
        chosen, x, t, velocity = sample_batch(latents, size)
        said = ["" if rng.random() < args.dropout else spoken(captions[i], rng) for i in chosen.tolist()]
        with torch.no_grad():
            empty = tuple(part.expand(size, *part.shape[1:]) for part in teacher.encode([""]))
            one = torch.ones_like(t)
            gap = teacher(x, t, one, teacher.encode(said)) - teacher(x, t, one, empty)
        g = 1 + 6 * torch.rand(size)
        target = velocity + (g - 1)[:, None, None] * gap
        error = (student(x, t, g, student.encode(said)) - target).square().mean((1, 2))
        # Errors grow with the guidance asked for; weighing them down keeps 7 from drowning 1 and 3.5.
        loss = (error / (1 + (g - 1).square() / 4)).mean()
        optimizer.zero_grad()
        loss.backward()
        team.share(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step(rate)
        average.update(student)
        step += 1
        running += loss.item()
        done = bool(team.agreed(clock.done))
        if step % 25 == 0 and team.rank == 0:
            log.row(step=step, minutes=clock.spent / 60, loss=running / 25, rate=rate)
            running = 0.0
        if (step % 100 == 0 or done) and team.rank == 0:
            state = {"model": student.state_dict(), "optimizer": optimizer.state_dict()}
            save(state | {"average": average.state_dict(), "step": step, "spent": clock.spent}, checkpoint)
        if done:
            break
    if team.rank == 0:
        log.plot("loss")


if __name__ == "__main__":
    main()
