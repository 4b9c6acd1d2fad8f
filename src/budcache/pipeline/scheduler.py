"""Serving: the scheduler that carries out a policy's plan in the place of the pipeline's own.

With output reuse it shows the pipeline only the computed timesteps. Its `step` takes the inner scheduler
through the computed step and then, with the same output, through the reused ones behind it, so the
pipeline's loop runs exactly B times. With residual reuse the loop runs K times and the transformer's trunk
is skipped where the plan says so.
"""

from __future__ import annotations

import copy
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from budcache.errors import BudcacheWarning, PipelineError
from budcache.numerics.rollout import blended, landed
from budcache.numerics.solvers import first_order
from budcache.pipeline.branches import Branches
from budcache.pipeline.residual import Trunk
from budcache.pipeline.saving import Saved
from budcache.pipeline.schedulers import as_solver, check_noise, check_scheduler, clone, install, levels, skip_to
from budcache.pipeline.standin import Timesteps, ask_for_steps, counted_run
from budcache.pipeline.stats import Stats
from budcache.plan import Moves, Plan, Stretch, own_levels
from budcache.policy import Policy

__all__ = ["BudcacheScheduler"]

_CUT_SHORT = (
    "the pipeline runs only a part of its timesteps (denoising_start or denoising_end?), but the policy covers them "
    "all. Leave that argument out, or remove the policy."
)


class BudcacheScheduler(Saved):
    """Carries out a policy in the place of a pipeline's own scheduler.

    All its state is a plan, made when a run starts, and a cursor: the step of the full run that the pipeline is at.
    A pipeline that counts the steps of the full run (see `counting`) is shown them all, and its loop takes the computed
    ones. Any other, such as one that was loaded with its policy, is shown the computed ones and counts these.

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
        self.trunk, self.stats = Trunk(), Stats()
        self.at_start: Callable[[], None] | None = None  # called at the start of every run
        self.branches: Branches | None = (
            None  # who tells the branches of guidance apart, for policies that look at them
        )
        self._outputs: tuple[Tensor, ...] = ()  # newest first
        self._branch: tuple[Tensor, ...] = ()  # likewise of the conditional branch
        self._noise: Tensor | None = None  # where the run began
        self._moves: Moves = ()
        self._told_of_branches = False  # whether it was said that a run has no two branches
        self._told = False  # whether it was said that some blends look back before the start
        self._lock = threading.RLock()
        self._begin_run(Plan.of(policy, ()))

    def _begin_run(self, plan: Plan) -> None:
        self._plan, self._cursor, self._looped = plan, plan.begin, False
        self._apart = False  # whether the branches of guidance have been told apart so far
        self._turn = self._start = plan.begin  # the step of the loop's turn, and where the pipeline said it would begin
        self._thread, self._run_calls = threading.get_ident(), 0
        self._running = False  # whether the pipeline is in its loop
        self._forget()

    def use(self, policy: Policy, prepare: Callable[[], None]) -> None:
        """Carry out another policy from the next run on; what has been counted stays.

        A thread that has begun a run but not yet its loop gets an error at its next step.

        Args:
            policy: the other policy.
            prepare: makes the pipeline ready for it, where no run is under way; if that fails, all stays as it is.
        """
        with self._lock:
            if self._running:
                raise PipelineError(
                    "the pipeline is in the middle of a run, which goes by the policy that it began with. "
                    "Change it between two runs, or give each request a pipeline of its own: "
                    "type(pipe)(**pipe.components)."
                )
            prepare()
            self.policy, self._told, self._told_of_branches = policy, False, False
            self._begin_run(Plan.of(policy, ()))

    def left(self) -> None:
        """The pipeline's call is over; its loop, if an exception keeps it alive, does not count any more."""
        with self._lock:
            if self._thread == threading.get_ident():
                self._running = False
                self._forget()

    # What the pipeline looks at

    @property
    def _shows_all(self) -> bool:
        """Whether the pipeline sees all K timesteps, or the computed ones only."""
        return self._has_to_loop or self._is_counted

    @property
    def _has_to_loop(self) -> bool:
        """Whether only the pipeline's loop tells where the run is."""
        return self.strength or self.policy.reuse == "residual"

    @property
    def _is_counted(self) -> bool:
        """Whether the pipeline counts the steps of the full run; a copy that it has made (for sound) goes along."""
        return counted_run.get() is not None

    @property
    def _shown(self) -> tuple[int, ...]:
        """The steps that the pipeline sees in `timesteps` and `sigmas`."""
        return tuple(range(self.policy.steps)) if self._shows_all else self.policy.mask.computed

    @property
    def timesteps(self) -> Tensor:
        """The timesteps that the pipeline is to loop over."""
        timesteps: Tensor = self.inner.timesteps
        if len(timesteps) != self.policy.steps:
            return timesteps  # before `set_timesteps`
        if not self._shows_all:
            return self._computed_from(0)
        return Timesteps.of(timesteps, self._shown, self._loop_over_a_part, self._rest_from, self._counter)

    def _rest_from(self, begin: int) -> Tensor:
        """What is left of all K timesteps for a pipeline that begins at a step."""
        self._start = begin
        if self.policy.reuse == "output" and not self._is_counted:
            return self._computed_from(begin)
        steps = range(begin, self.policy.steps)
        return Timesteps.of(self.inner.timesteps[begin:], steps, self._loop_over_a_part, counter=self._counter)

    @property
    def _counter(self) -> BudcacheScheduler | None:
        return self if self._is_counted else None

    def _computed_from(self, begin: int) -> Tensor:
        """The timesteps that are computed in a run from a step on."""
        steps = Plan.of(self.policy, (), begin).computed if begin < self.policy.steps else ()
        return Timesteps.of(self.inner.timesteps[list(steps)], steps, self._loop_over_the_rest)

    @property
    def sigmas(self) -> Tensor:
        """The noise levels that go with `timesteps`, and the one after the last."""
        sigmas: Tensor = self.inner.sigmas
        if len(sigmas) != self.policy.steps + 1 or self._shows_all:
            return sigmas
        return sigmas[[*self._shown, self.policy.steps]]

    @property
    def num_inference_steps(self) -> int:
        """How many timesteps the pipeline sees."""
        return len(self._shown)

    @property
    def step_index(self) -> int | None:
        """The position in `timesteps`, or None before the first step."""
        begun = self._looped or self._cursor > self._plan.begin
        return self._shown.index(self._cursor) if begun and self._cursor in self._shown else None

    @property
    def place(self) -> int:
        """See `StandIn`."""
        return self._cursor - self._plan.begin

    @property
    def length(self) -> int:
        """See `StandIn`."""
        return self.policy.steps - self._plan.begin

    @property
    def passed(self) -> range:
        """See `StandIn`."""
        return range(self._turn + 1, self._cursor)

    @property
    def planned_calls(self) -> int:
        """How often the pipeline's loop will run from where it is set to begin."""
        # Not every scheduler can be told where; then only the timesteps that the pipeline has taken tell it.
        begin = getattr(self.inner, "begin_index", None) or self._start
        return self.policy.steps - begin if self.policy.reuse == "residual" else Plan.of(self.policy, (), begin).calls

    def _set_begin_index(self, begin_index: int = 0) -> None:
        if begin_index and not self.strength:
            raise PipelineError(
                f"this pipeline starts at its step {begin_index}, but the policy was applied to one that starts at 0. "
                "Remove it, make the image-to-image pipeline, and apply it there."
            )
        self.inner.set_begin_index(begin_index)

    def _set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        """A run begins."""
        call = inspect.signature(self.inner.set_timesteps).bind(*args, **kwargs)
        own = ask_for_steps(call.arguments, self.policy.steps, self.default_steps)
        if own and self.policy.sigmas is not None and self.own_sigmas:
            raise PipelineError(
                "the pipeline was given its own sigmas or timesteps, but the policy decides the noise levels. "
                "Leave them out, or apply a policy without sigmas."
            )
        with self._lock:
            self.inner.set_timesteps(*call.args, **call.kwargs)
            steps = self.policy.steps
            if len(self.inner.timesteps) != steps:
                raise PipelineError(
                    f"{type(self.inner).__name__} makes {len(self.inner.timesteps)} timesteps out of {steps} steps, so "
                    "a mask does not fit it. Use a scheduler that makes one a step."
                )
            if self.policy.sigmas is not None:
                install(self.inner, own_levels(self.policy, levels(self.inner).tolist()))
            self._begin_run(Plan.of(self.policy, tuple(levels(self.inner).tolist())))
            self.stats.count(self.policy.budget, runs=1)
            if self.branches is not None:
                self.branches.begin()
        if self.at_start is not None:
            self.at_start()

    # What happens in the pipeline's loop

    def _loop_over_the_rest(self, steps: tuple[int, ...]) -> Iterator[Tensor]:
        """The pipeline's `for t in timesteps`, where it was shown the computed ones."""
        self._require_own_thread()
        if steps and steps != Plan.of(self.policy, (), steps[0]).computed:
            raise PipelineError(_CUT_SHORT)
        return self._loop(steps, self.policy.steps)

    def _loop_over_a_part(self, steps: tuple[int, ...]) -> Iterator[Tensor]:
        """The same where it was shown all; it may have taken a part of them."""
        # Pipelines find their early end by looping over the timesteps, and such a loop takes the computed ones only.
        if steps and steps[-1] + 1 < self.policy.steps and self._is_counted and self.policy.reuse == "output":
            raise PipelineError(_CUT_SHORT)
        return self._loop(steps, steps[-1] + 1 if steps else 0)

    def _loop(self, steps: tuple[int, ...], end: int) -> Iterator[Tensor]:
        if not steps:
            raise PipelineError("the pipeline has no step left to run. Raise its strength.")
        with self._lock:
            self._require_own_thread()
            plan = self._plan = Plan.of(self.policy, self._plan.levels, steps[0], end)
        self._say_what_is_plain(plan)
        try:
            for k in steps if plan.reuse == "residual" else plan.computed:
                with self._lock:
                    self._require_own_thread()
                    self._cursor, self._turn, self._looped, self._running = k, k, True, True
                    if plan.reuse == "residual":
                        self.trunk.begin(compute=k in plan.computed)
                yield self.inner.timesteps[k]
        finally:  # also when the pipeline's loop is left by an exception, which drops this iterator
            with self._lock:
                if self._plan is plan:
                    self._turn, self._running = self._cursor, False
                    self._forget()

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        """One turn of the pipeline's loop: from the step that was just computed to the next one that will be."""
        with self._lock:
            self._check_turn(kwargs)
            if self._plan.reuse == "residual":
                return self._step_with_trunk(model_output, timestep, sample, *args, **kwargs)
            stretch = self._stretch(model_output)
            if stretch.noise is not None:
                result = self._in_one_go(stretch, timestep, sample, *args, **kwargs)
                self._turn, self._cursor = stretch.step, stretch.end
                self._count(computed=1, reused=stretch.end - stretch.step - 1)
                return result
            v = blended(self._outputs, stretch.blend)
            result = self.inner.step(v, timestep, sample, *args, **kwargs)
            for k in range(stretch.step + 1, stretch.end):
                result = self.inner.step(v, self.inner.timesteps[k], result[0], *args, **kwargs)
            self._turn, self._cursor = stretch.step, stretch.end
            self._count(computed=1, reused=stretch.end - stretch.step - 1)
            return result

    def _in_one_go(self, stretch: Stretch, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The end of a stretch without a solver (F13), in the form in which the inner scheduler gives its answers."""
        if stretch.step == self._plan.begin:
            self._noise = sample.clone()  # some pipelines write their next sample into the same tensor
            self._moves = first_order(as_solver(copy.deepcopy(self.inner)), levels(self.inner), sample.device)
        assert self._noise is not None
        x = landed(sample, self._outputs, self._noise, stretch.on(self._moves), self._branch)
        asked = inspect.signature(self.inner.step).bind(self._outputs[0], timestep, sample, *args, **kwargs)
        if not asked.arguments.get("return_dict", True):
            answer: Any = (x,)
        else:
            answer = clone(self.inner).step(self._outputs[0], timestep, sample, *args, **kwargs)
            answer["prev_sample"] = x
        skip_to(self.inner, stretch.end)
        return answer

    def _step_with_trunk(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The same with residual reuse: every step is a turn, and the trunk has run or was skipped."""
        self.trunk.end()
        if not self.trunk.calls:
            raise PipelineError(
                "this policy reuses residuals, but it is not attached to the pipeline's transformer: a saved or "
                "copied scheduler does not carry that. Set pipe.scheduler = pipe.scheduler.inner, then apply it."
            )
        computed = self._cursor in self._plan.computed
        self._count(computed=int(computed), reused=int(not computed))
        return self.inner.step(model_output, timestep, sample, *args, **kwargs)

    def _stretch(self, model_output: Tensor) -> Stretch:
        """The stretch that begins where the pipeline is, its newest output at hand."""
        plan, conditional = self._plan, None
        if self.branches is not None:
            conditional = self.branches.take(model_output, first=self._cursor == plan.begin)
        self._apart = conditional is not None and (self._apart or self._cursor == plan.begin)
        self._say_what_is_combined()
        if conditional is not None and self._apart:
            plan = Plan.of(self.policy, plan.levels, plan.begin, plan.end, guided=True)
            self._branch = (conditional, *self._branch)[: plan.outputs]
        self._outputs = (model_output, *self._outputs)[: max(plan.outputs, self._plan.outputs)]
        return plan.stretches[plan.computed.index(self._cursor)]

    def _check_turn(self, kwargs: dict[str, Any]) -> None:
        self._require_own_thread()
        check_noise(self.inner, kwargs)
        if self._has_to_loop and not self._looped and self.policy.budget < self.policy.steps:
            raise PipelineError(
                "this pipeline does not loop over scheduler.timesteps, so its start cannot be followed. "
                'Use reuse="output" on a pipeline without `strength`.'
            )

    def _require_own_thread(self) -> None:
        if self._thread != threading.get_ident():
            raise PipelineError(
                "two threads run this pipeline at once, and its scheduler can follow only one of them. "
                "Give each thread a pipeline of its own: type(pipe)(**pipe.components), with copies of its "
                "tokenizers and a policy applied to each."
            )

    def _say_what_is_plain(self, plan: Plan) -> None:
        if plan.plain and not self._told:
            self._told = True
            warnings.warn(
                f"this run starts at step {plan.begin}, and {plan.plain} of the policy's blends look back before that; "
                "these stretches repeat the last output instead. The number of calls holds.",
                BudcacheWarning,
                stacklevel=3,
            )

    def _say_what_is_combined(self) -> None:
        if self.branches is not None and not self._apart and not self._told_of_branches:
            self._told_of_branches = True
            warnings.warn(
                "the policy has rows for two branches of guidance, but this run does not have two that can be told "
                "apart (is its guidance off?); it goes by its rows for the combined output. The number of calls holds.",
                BudcacheWarning,
                stacklevel=4,
            )

    def _count(self, computed: int, reused: int) -> None:
        self.stats.count(self.policy.budget, calls=computed, reused=reused)
        self._run_calls += computed
        self.stats.last_run_calls = self._run_calls
        self._running = self._looped or self._cursor < self._plan.end

    def _forget(self) -> None:
        """Let go of what a run remembers: the decoder needs the memory."""
        self.trunk.forget()
        if self.branches is not None:
            self.branches.rest()
        self._outputs, self._branch, self._noise, self._moves = (), (), None, ()

    # Copies have a lock of their own: locks can be neither copied nor pickled.
    own_to_each_copy = ("_lock",)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
