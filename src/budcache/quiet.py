"""Two lines that transformers prints whenever diffusers imports a pipeline of FLUX, and that nobody can act on.

They advise to install torchvision for image processors that diffusers only names. Their logger says nothing else of
the kind; what a user's own import causes is still said. They are said once, at that import: a program that imports
diffusers' pipeline before budcache has read them already.
"""

from __future__ import annotations

import logging
import sys
from types import FrameType

__all__ = ["silence_torchvision_advice"]


class _Advice(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "requires torchvision (not installed)" not in record.getMessage() or not _caused_by("diffusers")


def silence_torchvision_advice() -> None:
    """Leave these lines out from now on, whoever imports diffusers from now on."""
    logger = logging.getLogger("transformers.utils.import_utils")
    if not any(isinstance(known, _Advice) for known in logger.filters):
        logger.addFilter(_Advice())


def _caused_by(package: str) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            return True
        frame = frame.f_back
    return False
