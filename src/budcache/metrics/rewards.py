"""ImageReward and HPSv2.1: what people are predicted to prefer, no reference needed.

Both come as packages that need torchvision and pin old versions of others. So each is an extra of its own; install
it into an environment of its own and run `budcache compare` there.
"""

from __future__ import annotations

import importlib
from typing import Any

from PIL import Image

from budcache.metrics.base import Frame, Metric, absent
from budcache.storage.media import to_picture

__all__ = ["Hpsv2", "ImageReward"]


class ImageReward(Metric):
    """ImageReward v1.0 (Xu et al. 2023)."""

    name, title, digits, reference = "imagereward", "ImageReward", 4, False

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.model: Any = None

    def prepare(self) -> None:
        """Load the model."""
        if self.model is not None:
            return
        try:
            package = importlib.import_module("ImageReward")
        except ImportError as error:
            raise _no_package(self, "rewards", error) from None
        try:
            self.model = package.load("ImageReward-v1.0", device=self.device)
        except (OSError, ValueError) as error:
            raise _no_weights(self, "THUDM/ImageReward", error) from None

    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame."""
        self.prepare()
        return float(self.model.score(prompt, to_picture(picture)))


class Hpsv2(Metric):
    """Human Preference Score v2.1 (Wu et al. 2023)."""

    name, title, digits, reference = "hpsv2", "HPSv2.1", 4, False

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.score: Any = None

    def prepare(self) -> None:
        """Load the package; it loads its weights with the first picture, so it is given one here."""
        if self.score is not None:
            return
        try:
            package = importlib.import_module("hpsv2")
        except ImportError as error:
            raise _no_package(self, "hps", error) from None
        try:
            package.score(Image.new("RGB", (224, 224)), "", hps_version="v2.1")
        except (OSError, ValueError) as error:
            raise _no_weights(self, "xswu/HPSv2", error) from None
        self.score = package.score

    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame."""
        self.prepare()
        return float(self.score(to_picture(picture), prompt, hps_version="v2.1")[0])


def _no_package(metric: Metric, extra: str, error: ImportError) -> Exception:
    return absent(
        metric.title,
        f"a package that is not installed ({error})",
        f"Install budcache[{extra}], or leave {metric.name} out of --metrics.",
    )


def _no_weights(metric: Metric, source: str, error: Exception) -> Exception:
    return absent(
        metric.title,
        f"the weights of {source}, which could not be downloaded ({type(error).__name__})",
        f"Connect once, or leave {metric.name} out of --metrics.",
    )
