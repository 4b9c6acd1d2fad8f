"""LPIPS (Zhang et al. 2018): how different two pictures look to AlexNet.

The usual packages import torchvision only for five convolutions. They are written out here, so LPIPS needs nothing but
AlexNet's weights: the heads come with torchmetrics. A test compares it with torchmetrics' own, number for number.
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from budcache.metrics.base import Frame, Metric, absent

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Lpips"]

WEIGHTS = "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth"
# Of values from -1 to 1; ImageNet's mean and deviation, as the heads were trained with them.
MEAN, DEVIATION = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
LAYERS = (1, 4, 7, 9, 11)  # outputs that are compared: each convolution after its ReLU


class Lpips(Metric):
    """Distance of AlexNet's activations, weighted as people judged; 0 is equal."""

    name, title, digits, higher = "lpips", "LPIPS", 4, False

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.trunk: Any = None
        self.heads: list[Tensor] = []  # [1, C, 1, 1] for each of the compared layers

    def prepare(self) -> None:
        """Load AlexNet, from the cache of torch's hub or from the network."""
        import torch

        if self.trunk is not None:
            return
        try:
            with redirect_stdout(sys.stderr):  # torch says there that it downloads
                weights = torch.hub.load_state_dict_from_url(
                    WEIGHTS, map_location="cpu", check_hash=True, progress=False
                )
        except (OSError, RuntimeError, ValueError) as error:
            place = Path(torch.hub.get_dir()) / "checkpoints"
            raise absent(
                self.title,
                f"AlexNet's weights, and {WEIGHTS} could not be downloaded ({getattr(error, 'reason', None) or error})",
                f"Connect once, put the file into {place}, or leave lpips out of --metrics.",
            ) from None
        trunk = alexnet()
        trunk.load_state_dict({name.removeprefix("features."): w for name, w in weights.items() if "features" in name})
        self.use(trunk)

    def use(self, trunk: Any) -> None:
        """Take a trunk of AlexNet's shape, and the heads that torchmetrics brings."""
        import torch
        import torchmetrics.functional.image as home

        file = Path(str(home.__file__)).parent / "lpips_models" / "alex.pth"
        heads = torch.load(file, map_location=self.device, weights_only=True)
        self.heads = [heads[f"lin{number}.model.1.weight"] for number in range(len(LAYERS))]
        self.trunk = trunk.eval().requires_grad_(False).to(self.device)

    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame."""
        import torch

        self.prepare()
        pair = torch.from_numpy(np.stack([picture, reference]).astype(np.float32)).permute(0, 3, 1, 2).to(self.device)
        x = (2 * pair - 1 - pair.new_tensor(MEAN)[:, None, None]) / pair.new_tensor(DEVIATION)[:, None, None]
        distance = 0.0
        heads = iter(self.heads)
        for number, layer in enumerate(self.trunk):
            x = layer(x)
            if number in LAYERS:
                unit = x / (x.square().sum(dim=1, keepdim=True) + 1e-8).sqrt()
                distance += float(((unit[:1] - unit[1:]).square() * next(heads)).sum(dim=1).mean())
        return distance


def alexnet() -> Any:
    """AlexNet's convolutions, numbered as in torchvision, whose weights they take."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
    )
