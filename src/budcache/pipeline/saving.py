"""Schedulers with a policy as files: a pipeline saved while it carries a policy still carries it when loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from diffusers.schedulers.scheduling_utils import SchedulerMixin
from typing_extensions import Self

from budcache.chosen import parse
from budcache.errors import BudcacheError, PipelineError
from budcache.mask import MAX_STEPS
from budcache.pipeline.standin import StandIn
from budcache.policy import Policy
from budcache.storage.files import write_text
from budcache.wording import quote

__all__ = ["Saved"]

CONFIG_FILE = "scheduler_config.json"
SETTINGS = ("default_steps", "strength", "own_sigmas")  # what is kept beside the policy
LARGEST = 1_000_000  # of a scheduler's settings: it makes tables as long as its training was


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
        write_text(path, json.dumps(settings, indent=2) + "\n")

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
        name = ours.get("inner")
        # Looked up only if it is the name of a scheduler: asking for one of another kind would import it.
        named = isinstance(name, str) and name.endswith("Scheduler")
        inner_class: Any = getattr(diffusers, str(name), None) if named else None
        policy = parse(ours.get("policy"))
        if not isinstance(policy, Policy):
            raise PipelineError(
                f"{pretrained_model_name_or_path} holds a ladder where a policy should be. Save it again."
            )
        if not isinstance(inner_class, type) or not issubclass(inner_class, SchedulerMixin):
            raise PipelineError(f"{quote(name)} is not a scheduler of diffusers. Upgrade diffusers.")
        settings["_class_name"] = name
        more = {name: ours[name] for name in SETTINGS if name in ours}
        make, make_inner = cast(Any, cls), cast(Any, inner_class)
        try:
            _check_settings(settings, more)
            made: Self = make(make_inner.from_config(settings), policy, **more)
        except BudcacheError:
            raise
        except Exception as error:  # what settings that make no sense raise is up to the scheduler
            raise PipelineError(
                f"the scheduler's settings in {pretrained_model_name_or_path} make no sense "
                f"({type(error).__name__}). Save the pipeline again."
            ) from None
        return made

    @classmethod
    def load_config_file(
        cls, name_or_path: str | Path, subfolder: str | None, **kwargs: Any
    ) -> tuple[dict[str, Any], Any]:
        """The settings in a folder or on the hub, found the way diffusers finds them."""
        from diffusers import DDIMScheduler

        kwargs = {key: value for key, value in kwargs.items() if key != "return_unused_kwargs"}
        try:
            found = DDIMScheduler.load_config(name_or_path, subfolder=subfolder, return_unused_kwargs=True, **kwargs)
            return dict(found[0]), found[1]
        except (OSError, ValueError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise PipelineError(f"the scheduler of {name_or_path} cannot be read: {reason}.") from None


def _check_settings(settings: dict[str, Any], ours: dict[str, Any]) -> None:
    """Refuse what would take all memory, and what is of another kind than we wrote."""
    large = [each for each in settings.values() if isinstance(each, int | float) and not abs(each) <= LARGEST]
    steps = ours.get("default_steps")
    kinds = all(isinstance(ours.get(name, True), bool) for name in ("strength", "own_sigmas"))
    if large or not kinds or not (steps is None or (type(steps) is int and 1 <= steps <= MAX_STEPS)):
        raise ValueError
