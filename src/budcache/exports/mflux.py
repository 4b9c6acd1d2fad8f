"""mflux: a scheduler class, for FLUX and others on Apple's chips."""

from __future__ import annotations

from typing import ClassVar

from budcache.exports.base import Made, Target, Task, module

__all__ = ["Mflux"]


class Mflux(Target):
    """One file of Python."""

    name: ClassVar[str] = "mflux"
    about: ClassVar[str] = "a scheduler class for mflux"
    is_module: ClassVar[bool] = True

    def make(self, task: Task) -> Made:
        """The class, with the policy in it."""
        name = f"{task.name}.PolicyScheduler"
        run = f"PYTHONPATH={{folder}} mflux-generate --scheduler {name} --steps {task.policy.budget} --prompt ..."
        return Made({"": module("mflux.py.txt", task)}, run)
