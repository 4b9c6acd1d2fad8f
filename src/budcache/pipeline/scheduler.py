"""Serving: the scheduler that carries out a policy.

With output reuse it shows the pipeline only the computed timesteps. Its `step` takes the inner scheduler
through the computed step and then, with the same output, through the reused ones behind it, so the
pipeline's loop runs exactly B times. With residual reuse the loop runs K times and the transformer's trunk
is skipped where the mask says so.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from diffusers.schedulers.scheduling_utils import SchedulerMixin
from torch import Tensor

from budcache.errors import PipelineError
from budcache.numerics.rollout import blend
from budcache.pipeline.residual import Trunk
from budcache.pipeline.standin import StandIn, Timesteps, check_scheduler, install
from budcache.policy import Policy, parse

__all__ = ["BudcacheScheduler", "Stats"]

CONFIG_FILE = "scheduler_config.json"


@dataclass
class Stats:
    """What has really happened under a policy; a call is one evaluation, whatever its guidance branches."""

    runs: int = 0
    calls: int = 0
    reused: int = 0
    last_run_calls: int = 0


class BudcacheScheduler(StandIn):
    """Carries out a policy in the place of a pipeline's own scheduler.

    Args:
        inner: the scheduler that the pipeline had; any deterministic one that calls the model once a step.
        policy: what to carry out.
        default_steps: the number of steps that the pipeline asks for when its user names none.
        strength: whether the pipeline may start midway (image-to-image). It is then shown all K timesteps, so
            that it finds its start where the full run has it; what it takes from there are the computed ones.
        own_sigmas: whether the pipeline's user can hand it sigmas or timesteps of his own.
    """

    # A saved pipeline names this class by its module. `budcache` is what users import, so it is named there.
    __module__ = "budcache"

    def __init__(
        self,
        inner: Any,
        policy: Policy,
        default_steps: int | None = None,
        strength: bool = False,
        own_sigmas: bool = True,
    ) -> None:
        check_scheduler(inner)
        super().__init__(copy.deepcopy(inner))
        self.policy, self.default_steps, self.strength = policy, default_steps, strength
        self.own_sigmas = own_sigmas
        self.trunk, self._outputs = Trunk(), tuple[Tensor, ...]()
        self.stats = Stats()
        self.at_start: Callable[[], None] | None = None  # called at the start of every run
        self._restart()

    def _restart(self) -> None:
        self._k: int | None = None  # the step that the pipeline is at
        self._end = self.policy.steps
        self._position = 0  # computed steps begun
        self._plan: tuple[int, ...] = self.policy.mask.computed  # the steps at which the model is computed
        self._run_calls = 0
        self._forget()

    # What the pipeline looks at

    @property
    def _shown(self) -> tuple[int, ...]:
        """The steps that the pipeline sees in `timesteps` and `sigmas`."""
        everything = self.strength or self.policy.reuse == "residual"
        return tuple(range(self.policy.steps)) if everything else self.policy.mask.computed

    def _planned(self, begin: int) -> tuple[int, ...]:
        """The steps that are computed in a run from a step on; whatever comes first has nothing to reuse."""
        return tuple(k for k, bit in enumerate(self.policy.mask) if k == begin or (bit and k > begin))

    @property
    def timesteps(self) -> Tensor:
        """The timesteps that the pipeline is to loop over."""
        timesteps: Tensor = self.inner.timesteps
        if len(timesteps) != self.policy.steps:
            return timesteps  # before `set_timesteps`
        if len(self._shown) < self.policy.steps:
            return self._rest(0)
        rest = self._rest if self.policy.reuse == "output" else None
        return Timesteps.of(timesteps, self._shown, self._loop_over_range, rest)

    def _rest(self, begin: int) -> Tensor:
        steps = self._planned(begin) if begin < self.policy.steps else ()
        return Timesteps.of(self.inner.timesteps[list(steps)], steps, self._loop_over_planned)

    @property
    def sigmas(self) -> Tensor:
        """The noise levels that go with `timesteps`, and the one after the last."""
        sigmas: Tensor = self.inner.sigmas
        if len(sigmas) != self.policy.steps + 1 or len(self._shown) == self.policy.steps:
            return sigmas
        return sigmas[[*self._shown, self.policy.steps]]

    @property
    def num_inference_steps(self) -> int:
        """How many timesteps the pipeline sees."""
        return len(self._shown)

    @property
    def step_index(self) -> int | None:
        """The position in `timesteps`, or None before the first step."""
        return self._shown.index(self._k) if self._k in self._shown else None

    @property
    def place(self) -> int:
        """See `StandIn`."""
        return 0 if self._k is None else self._k - self._plan[0]

    @property
    def length(self) -> int:
        """See `StandIn`."""
        return self.policy.steps - self._plan[0]

    @property
    def planned_calls(self) -> int:
        """How often the pipeline's loop will run from where it is set to begin."""
        begin = getattr(self.inner, "begin_index", None) or 0
        return self.policy.steps - begin if self.policy.reuse == "residual" else len(self._planned(begin))

    def _set_begin_index(self, begin_index: int = 0) -> None:
        if begin_index and not self.strength:
            raise PipelineError(
                f"this pipeline starts at its step {begin_index}, but the policy was applied to one that starts at 0. "
                "Remove it, make the image-to-image pipeline, and apply it there."
            )
        self.inner.set_begin_index(begin_index)

    def _set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        steps, policy = self.policy.steps, self.policy
        call = inspect.signature(self.inner.set_timesteps).bind(*args, **kwargs)
        asked = call.arguments
        given = [asked[name] for name in ("sigmas", "timesteps") if asked.get(name) is not None]
        number = int(asked.get("num_inference_steps") or (len(given[0]) if given else 0))
        if number not in (steps, self.default_steps):
            raise PipelineError(
                f"this policy has {steps} steps but the pipeline was asked for {number}. "
                f"Pass num_inference_steps={steps}, or search a policy of {number} steps."
            )
        sigmas = asked.get("sigmas")
        plain = sigmas is not None and np.allclose(np.asarray(sigmas), np.linspace(1, 1 / number, number), atol=1e-6)
        special = bool(given) and not plain
        if special and (number != steps or (policy.sigmas is not None and self.own_sigmas)):
            raise PipelineError(
                "the pipeline was given its own sigmas or timesteps, but the policy decides the noise levels. "
                f"Leave them out and pass num_inference_steps={steps}, or apply a policy without sigmas."
            )
        if number != steps:  # the user named no number, so the pipeline's default came: the policy's is meant
            if asked.get("num_inference_steps") is not None:
                asked["num_inference_steps"] = steps
            if plain:
                asked["sigmas"] = np.linspace(1, 1 / steps, steps)
        self.inner.set_timesteps(*call.args, **call.kwargs)
        if len(self.inner.timesteps) != steps:
            raise PipelineError(
                f"{type(self.inner).__name__} makes {len(self.inner.timesteps)} timesteps out of {steps} steps, so a "
                "mask does not fit it. Use a scheduler that makes one a step."
            )
        if policy.sigmas is not None:
            install(self.inner, policy.sigmas)
        self._restart()
        self.stats.runs += 1
        if self.at_start is not None:
            self.at_start()

    # What happens in the pipeline's loop

    def _loop_over_planned(self, steps: tuple[int, ...]) -> Iterator[Tensor]:
        """The pipeline's `for t in timesteps`, where it was shown the computed ones."""
        if steps and steps != self._planned(steps[0]):
            raise PipelineError(
                "the pipeline runs only a part of its timesteps (denoising_start or denoising_end?), but the policy "
                "covers them all. Leave that argument out, or remove the policy."
            )
        return self._loop(steps, self.policy.steps)

    def _loop_over_range(self, steps: tuple[int, ...]) -> Iterator[Tensor]:
        """The same where it was shown all; it may have taken a part of them."""
        return self._loop(steps, steps[-1] + 1 if steps else 0)

    def _loop(self, steps: tuple[int, ...], end: int) -> Iterator[Tensor]:
        if not steps:
            raise PipelineError("the pipeline has no step left to run. Raise its strength.")
        begin, residual = steps[0], self.policy.reuse == "residual"
        self._plan, self._end = tuple(k for k in self._planned(begin) if k < end), end
        if begin and self.policy.weights is not None:
            raise PipelineError(
                "the policy's blend weights were fitted to whole runs, but this one starts midway (strength below 1). "
                "Use strength=1, or a policy without weights."
            )
        try:
            for k in steps if residual else self._plan:
                self._k = k
                if residual:
                    self.trunk.begin(compute=k in self._plan)
                yield self.inner.timesteps[k]
        finally:  # also when the pipeline's loop is left by an exception, which drops this iterator
            self._forget()

    def _forget(self) -> None:
        """Let go of what a run remembers: the decoder needs the memory."""
        self.trunk.end()
        self.trunk.memo, self._outputs = {}, ()

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("eta"):
            raise PipelineError(f"eta={kwargs['eta']} adds fresh noise, so what is reused would not fit. Use eta=0.")
        if self._k is None:  # the pipeline takes timesteps by index instead of looping over them
            if len(self._shown) == self.policy.steps and self.policy.budget < self.policy.steps:
                raise PipelineError(
                    "this pipeline does not loop over scheduler.timesteps, so its start cannot be followed. "
                    'Use reuse="output" on a pipeline without `strength`.'
                )
            self._k = self._plan[0]
        k = self._k
        if self.policy.reuse == "residual":
            self.trunk.end()
            if not self.trunk.calls:
                raise PipelineError(
                    "this policy reuses residuals, but it is not attached to the pipeline's transformer: a saved or "
                    "copied scheduler does not carry that. Set pipe.scheduler = pipe.scheduler.inner, then apply it."
                )
            self._count(k in self._plan)
            return self.inner.step(model_output, timestep, sample, *args, **kwargs)
        model_output = self._blended(model_output)
        later = [j for j in self._plan if j > k]
        end = later[0] if later else self._end
        self._count(True)
        result = self.inner.step(model_output, timestep, sample, *args, **kwargs)
        for j in range(k + 1, end):
            self._count(False)
            result = self.inner.step(model_output, self.inner.timesteps[j], result[0], *args, **kwargs)
        self._k = end
        return result

    def _blended(self, output: Tensor) -> Tensor:
        """The output to go on with: the model's own, or the policy's blend of it with those before."""
        weights = self.policy.weights
        if weights is None:
            return output
        self._outputs = (output, *self._outputs)[: max(map(len, weights))]
        self._position += 1
        return blend(self._outputs, weights[self._position - 1])

    def _count(self, computed: bool) -> None:
        self.stats.calls += computed
        self.stats.reused += not computed
        self._run_calls += computed
        self.stats.last_run_calls = self._run_calls

    # Files: a pipeline saved while it carries a policy still carries it when loaded

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
            "default_steps": self.default_steps,
            "strength": self.strength,
            "own_sigmas": self.own_sigmas,
        }
        settings["_class_name"] = type(self).__name__
        path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, subfolder: str | None = None, **kwargs: Any
    ) -> BudcacheScheduler:
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
        more = {name: ours[name] for name in ("default_steps", "strength", "own_sigmas") if name in ours}
        return cls(inner_class.from_config(settings), policy, **more)

    @classmethod
    def load_config_file(
        cls, name_or_path: str | Path, subfolder: str | None, **kwargs: Any
    ) -> tuple[dict[str, Any], Any]:
        """The settings in a folder or on the hub, found the way diffusers finds them."""
        from diffusers import DDIMScheduler

        kwargs = {key: value for key, value in kwargs.items() if key != "return_unused_kwargs"}
        found = DDIMScheduler.load_config(name_or_path, subfolder=subfolder, return_unused_kwargs=True, **kwargs)
        return dict(found[0]), found[1]
