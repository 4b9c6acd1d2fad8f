"""DiffSynth-Studio: a scheduler class."""

from __future__ import annotations

from typing import ClassVar

from budcache.exports.base import Made, Target, Task, module

__all__ = ["DiffSynth"]


class DiffSynth(Target):
    """One file of Python."""

    name: ClassVar[str] = "diffsynth"
    about: ClassVar[str] = "a scheduler class for DiffSynth-Studio"
    is_module: ClassVar[bool] = True

    def make(self, task: Task) -> Made:
        """The class, with the policy in it."""
        run = (
            f"With {{folder}} on PYTHONPATH: from {task.name} import PolicyScheduler; pipe.scheduler = "
            f"PolicyScheduler(); pipe(prompt, num_inference_steps={task.policy.budget})"
        )
        return Made({"": module("diffsynth.py.txt", task)}, run)
