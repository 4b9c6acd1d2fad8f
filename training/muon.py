"""An optimizer that learns associations faster than Adam: momentum, with every matrix update made orthogonal.

Matrices get Muon's update, and so do the kernels of convolutions, one row for every channel that they give; all
else (embeddings, biases, norms) gets AdamW's. Updates are scaled to the size
that Adam's have, so one learning rate serves both.
"""

from __future__ import annotations

import torch
from common import Team
from torch import nn


def orthogonal(matrix: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """The nearest matrix with singular values of about 1, by Newton-Schulz iteration."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = 3.4445 * x + torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315) @ x
    return x if wide is matrix else x.T


def is_matrix(parameter: nn.Parameter) -> bool:
    """A matrix or a kernel, but neither a norm's factors (one number a channel) nor a table of vectors."""
    return parameter.ndim in (2, 4, 5) and parameter[0].numel() > 1


class Muon:
    """Muon for the matrices of `blocks`, AdamW for the other parameters; the team shares the matrix work."""

    def __init__(self, module: nn.Module, blocks: list[nn.Module], rate: float, team: Team) -> None:
        self.team = team
        self.matrices = [p for block in blocks for p in block.parameters() if p.requires_grad and is_matrix(p)]
        chosen = {id(p) for p in self.matrices}
        others = [p for p in module.parameters() if p.requires_grad and id(p) not in chosen]
        self.adam = torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
        self.momenta = [torch.zeros_like(p) for p in self.matrices]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.matrices]
        torch._foreach_lerp_(self.momenta, gradients, 0.05)
        ahead = torch._foreach_lerp(gradients, self.momenta, 0.95)  # Nesterov
        updates = [
            orthogonal(g.flatten(1)).reshape(g.shape) if i % self.team.size == self.team.rank else torch.zeros_like(g)
            for i, g in enumerate(ahead)
        ]
        self.team.add_up(updates)
        for p, update in zip(self.matrices, updates, strict=True):
            p.add_(update, alpha=-rate * 0.2 * max(p.flatten(1).shape) ** 0.5)

    def zero_grad(self) -> None:
        for p in self.matrices:
            p.grad = None
        self.adam.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        return {"adam": self.adam.state_dict(), "momenta": self.momenta}

    def load_state_dict(self, state: dict) -> None:
        self.adam.load_state_dict(state["adam"])
        self.momenta = state["momenta"]
