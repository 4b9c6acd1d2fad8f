"""What the training scripts share: a schedule by wall clock, averaged weights, a log, checkpoints."""

from __future__ import annotations

import csv
import math
import os
import time
from pathlib import Path

import torch
from torch import nn


class Clock:
    """Training ends after so many minutes, whatever the machine does meanwhile; resuming goes on counting.

    With `busy`, only the processor time that this process gets counts: on a machine that others use, training then
    ends later but does the same work.
    """

    def __init__(self, minutes: float, spent: float = 0.0, busy: bool = False) -> None:
        self.now = time.process_time if busy else time.monotonic
        self.total, self.start = 60 * minutes, self.now() - spent

    @property
    def spent(self) -> float:
        return self.now() - self.start

    @property
    def done(self) -> bool:
        return self.spent >= self.total

    def cosine(self, peak: float, step: int, warmup: int = 200, floor: float = 0.01) -> float:
        """The learning rate now: linear warm-up by steps, then a half cosine over the time given."""
        fraction = min(self.spent / self.total, 1.0)
        cosine = 0.5 * (1 + math.cos(math.pi * fraction))
        return peak * min(1.0, (step + 1) / warmup) * (floor + (1 - floor) * cosine)


class Average:
    """Exponential moving average of parameters, warmed up so that early values do not linger."""

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.values = [p.detach().clone() for p in module.parameters()]

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        torch._foreach_lerp_(self.values, [p.detach() for p in module.parameters()], 1 - decay)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        for p, value in zip(module.parameters(), self.values, strict=True):
            p.copy_(value)

    def state_dict(self) -> dict:
        return {"steps": self.steps, "values": self.values}

    def load_state_dict(self, state: dict) -> None:
        self.steps, self.values = state["steps"], state["values"]


class Log:
    """A CSV of the training, printed as it grows; `plot` draws one column of it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def row(self, **values: float) -> None:
        new = not self.path.exists()
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(values)
            writer.writerow([f"{v:.6g}" for v in values.values()])
        print(" ".join(f"{k}={v:.4g}" for k, v in values.items()), flush=True)

    def plot(self, column: str) -> None:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        with self.path.open() as file:
            rows = list(csv.DictReader(file))
        figure, axes = pyplot.subplots(figsize=(5, 3), dpi=80)
        axes.plot([float(r["step"]) for r in rows], [float(r[column]) for r in rows])
        axes.set(xlabel="step", ylabel=column, yscale="log")
        figure.tight_layout()
        figure.savefig(self.path.with_suffix(".png"))


class Team:
    """The processes of one training under `torchrun`; alone without it.

    Two processes of one thread each lose far less to other work on the machine than one of two threads,
    which waits for the slower thread at every operation instead of once a step.
    """

    def __init__(self) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        if self.size > 1:
            torch.set_num_threads(1)
            torch.distributed.init_process_group("gloo")

    def share(self, parameters: list[nn.Parameter]) -> None:
        """Give every process the mean of all gradients."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        self.add_up(gradients)
        torch._foreach_div_(gradients, self.size)

    def add_up(self, tensors: list[torch.Tensor]) -> None:
        """Give every process the sum of everybody's tensors, in one message."""
        if self.size == 1:
            return
        flat = torch.cat([t.flatten() for t in tensors])
        torch.distributed.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))

    def agreed(self, value: float) -> float:
        """The first process's value: clocks differ a little, learning rates and ends must not."""
        if self.size == 1:
            return value
        word = torch.tensor([value], dtype=torch.float64)
        torch.distributed.broadcast(word, src=0)
        return word.item()


def save(state: dict, path: Path) -> None:
    """A checkpoint that is either the old or the new one, never half of it."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def psnr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Per picture, for pixels in [-1, 1]."""
    return 10 * torch.log10(4 / (a - b).square().flatten(1).mean(1).clamp_min(1e-12))
