"""Schedulers with a policy as files: a pipeline saved while it carries a policy still carries it when loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers.schedulers.scheduling_utils import SchedulerMixin
from typing_extensions import Self

from budcache.errors import PipelineError
from budcache.pipeline.standin import StandIn
from budcache.policy import Policy, parse

__all__ = ["Saved"]

CONFIG_FILE = "scheduler_config.json"
SETTINGS = ("default_steps", "strength", "own_sigmas")  # what is kept beside the policy


class Saved(StandIn):
    """A stand-in that can be written into a pipeline's folder and read from there.

    It is made of the scheduler that it stands in for, a policy and its settings.
    """

    policy: Policy

    def save_pretrained(self, save_directory: str | Path, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write the inner scheduler's settings and the policy into one `scheduler_config.json`."""
        if push_to_hub:
            raise PipelineError("a scheduler with a policy cannot be pushed by itself. Push its pipeline.")
        self.inner.save_pretrained(save_directory)
        path = Path(save_directory) / CONFIG_FILE
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings["_budcache"] = {
            "inner": settings["_class_name"],
            "policy": self.policy.model_dump(mode="json", exclude_none=True),
            **{name: getattr(self, name) for name in SETTINGS},
        }
        settings["_class_name"] = type(self).__name__
        path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, subfolder: str | None = None, **kwargs: Any
    ) -> Self:
        """Read what `save_pretrained` wrote."""
        import diffusers

        settings, _ = cls.load_config_file(pretrained_model_name_or_path, subfolder, **kwargs)
        ours = settings.pop("_budcache", None)
        if not isinstance(ours, dict):
            raise PipelineError(f"{pretrained_model_name_or_path} holds no budcache policy. Load the stock scheduler.")
        inner_class = getattr(diffusers, str(ours.get("inner")), None)
        policy = parse(ours.get("policy"))
        if not isinstance(policy, Policy):
            raise PipelineError(
                f"{pretrained_model_name_or_path} holds a ladder where a policy should be. Save it again."
            )
        if inner_class is None or not issubclass(inner_class, SchedulerMixin):
            raise PipelineError(f"{ours.get('inner')!r} is not a scheduler of diffusers. Upgrade diffusers.")
        settings["_class_name"] = ours["inner"]
        more = {name: ours[name] for name in SETTINGS if name in ours}
        make: Any = cls
        made: Self = make(inner_class.from_config(settings), policy, **more)
        return made

    @classmethod
    def load_config_file(
        cls, name_or_path: str | Path, subfolder: str | None, **kwargs: Any
    ) -> tuple[dict[str, Any], Any]:
        """The settings in a folder or on the hub, found the way diffusers finds them."""
        from diffusers import DDIMScheduler

        kwargs = {key: value for key, value in kwargs.items() if key != "return_unused_kwargs"}
        found = DDIMScheduler.load_config(name_or_path, subfolder=subfolder, return_unused_kwargs=True, **kwargs)
        return dict(found[0]), found[1]
