"""A bare list of noise levels, for whoever takes one."""

from __future__ import annotations

from typing import ClassVar

from budcache.exports.base import Made, Target, Task, decimals

__all__ = ["Sigmas"]


class Sigmas(Target):
    """The levels of the computed steps, and the last."""

    name: ClassVar[str] = "sigmas"
    about: ClassVar[str] = "the bare list of noise levels, for an Euler sampler that takes it as it is"
    carries_rows: ClassVar[bool] = False
    needs_argument: ClassVar[str | None] = "sigmas"

    def make(self, task: Task) -> Made:
        """A JSON list of B + 1 numbers."""
        run = (
            "In diffusers: pipe.scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config, "
            "use_dynamic_shifting=False, shift=1.0, shift_terminal=None), or they are shifted again; then "
            "pipe(prompt, sigmas=json.load(open('{out}'))[:-1])"
        )
        return Made({"": f"[{', '.join(decimals(task.short))}]\n"}, run)
