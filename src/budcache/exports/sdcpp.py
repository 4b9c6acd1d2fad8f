"""stable-diffusion.cpp: options with the noise levels. (Its `--scm-mask` is read and does nothing: it is not used.)"""

from __future__ import annotations

from typing import ClassVar

from budcache.exports.base import Made, Target, Task, decimals

__all__ = ["Sdcpp"]


class Sdcpp(Target):
    """One line of options."""

    name: ClassVar[str] = "sdcpp"
    about: ClassVar[str] = "options for stable-diffusion.cpp"
    carries_rows: ClassVar[bool] = False

    def make(self, task: Task) -> Made:
        """Euler on the levels of the computed steps."""
        options = f"--sampling-method euler --steps {task.policy.budget} --sigmas {','.join(decimals(task.short))}\n"
        return Made({"": f"# {task.header}\n{options}"}, "sd-cli -m MODEL -p PROMPT $(grep -v '^#' {out})")
