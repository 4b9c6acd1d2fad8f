"""`budcache.check`: what a policy promises, tried on the user's own machine and model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from budcache.chosen import PolicyLike, choose
from budcache.comparison.timing import Pair, Speed, enough, pace, speed
from budcache.errors import BudcacheWarning
from budcache.jobs.promised import Promise, quality, settings_like, speed_of
from budcache.jobs.setup import check_call
from budcache.metrics import psnr
from budcache.options import known_options
from budcache.policy import Policy
from budcache.samples.prompts import TRIED
from budcache.samples.samples import fresh, seeded, settings_of, take_samples
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.pipeline.heard import Heard

__all__ = ["Checked", "Promise", "check"]

SEED = 20_000  # far from those of searches and comparisons


@dataclass(frozen=True)
class Checked:
    """What came of a check.

    Attributes:
        budget: model calls per sample that the policy promises.
        steps: K of the full run.
        promises: one by one.
        calls: model calls that were really made, of each sample.
        psnr: decibels to the full run, of each sample.
        seconds_per_call: of the denoising loop; None if it was not timed.
        speed: how many times faster than the full run.
    """

    budget: int
    steps: int
    promises: tuple[Promise, ...]
    calls: tuple[int, ...]
    psnr: tuple[float, ...]
    seconds_per_call: float | None
    speed: Speed

    @property
    def kept(self) -> bool:
        """Whether no promise was broken."""
        return all(promise.kept is not False for promise in self.promises)

    def __str__(self) -> str:
        return "\n".join(map(str, self.promises))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        known = self.speed.known
        return {
            "kept": self.kept,
            "budget": self.budget,
            "steps": self.steps,
            "promises": {p.name: {"kept": p.kept, "text": p.text} for p in self.promises},
            "calls": self.calls,
            "psnr": self.psnr,
            "seconds_per_call": self.seconds_per_call,
            "speedup": self.speed.median if known else None,
            "pairs": self.speed.pairs,
        }


@known_options
def check(
    pipe: Any,
    policy: PolicyLike,
    *,
    budget: int | None = None,
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    call: Mapping[str, Any] | None = None,
    seed: int = SEED,
    timed: bool = True,
    tell: Callable[[str], None] | None = None,
) -> Checked:
    """Try on a pipeline what a policy promises: exact calls, the plan, removal, quality and speed.

    Args:
        pipe: the pipeline; it is left as it is.
        policy: a policy, a ladder (with `budget`), or the path of either.
        budget: which rung of a ladder to try.
        prompts: what to draw; two of our own if nothing is given; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        call: keyword arguments of the pipeline that all samples share: size, guidance; by default those that the
            policy was made at.
        seed: of the first sample's noise; the next ones count up.
        timed: whether to measure the speed as well, by pairs of full and served runs.
        tell: is called with what is done next, a few words each time.

    Returns:
        The promises one by one; `kept` if none was broken.
    """
    chosen = choose(policy, budget)
    given = take_samples(prompts or (() if samples else TRIED), samples, call)
    check_call(pipe, given, "check", {"num_inference_steps": None, "output_type": None, "return_dict": None})
    _warn_of_another_model(pipe, chosen)
    usual = settings_like(pipe, chosen, given)
    drawn = [seeded({**usual, **sample}, seed + i) for i, sample in enumerate(given)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BudcacheWarning)  # what there is to say was said, once
        return _Check(pipe, chosen, drawn, tell or (lambda text: None)).run(timed)


def _warn_of_another_model(pipe: Any, policy: Policy) -> None:
    """At once, not after the first run in full."""
    from budcache.pipeline.parts import check_pipeline
    from budcache.pipeline.standin import StandIn
    from budcache.pipeline.suited import check_model, check_scheduler_of

    check_pipeline(pipe)
    if not isinstance(pipe.scheduler, StandIn):  # that is refused when the policy is applied
        check_scheduler_of(policy, pipe.scheduler)
        check_model(policy, pipe)


@dataclass
class _Check:
    pipe: Any
    policy: Policy
    samples: Sequence[Mapping[str, Any]]
    tell: Callable[[str], None]
    full: list[Any] = field(default_factory=list)  # pictures
    served: list[Any] = field(default_factory=list)
    made: list[Heard] = field(default_factory=list)

    def run(self, timed: bool) -> Checked:
        for number, sample in enumerate(self.samples, 1):
            self.tell(f"sample {number} of {len(self.samples)}, in full and under the policy")
            self._draw(sample)
        ratios = tuple(min(psnr(one, other), 100.0) for one, other in zip(self.served, self.full, strict=True))
        if timed:
            self.tell("the speed, by pairs of runs")
        pairs, per_call = self._paired() if timed else (speed((), (), (), ()), None)
        return Checked(
            budget=self.policy.budget,
            steps=self.policy.steps,
            promises=(
                self._calls(),
                self._plan(),
                self._removal(),
                quality(self.policy, ratios, self._settings(), self._differs()),
                speed_of(self.policy, pairs, per_call),
            ),
            calls=tuple(made.calls for made in self.made),
            psnr=ratios,
            seconds_per_call=per_call,
            speed=pairs,
        )

    def _differs(self) -> str | None:
        from budcache.pipeline.origin import difference

        return None if self.policy.origin is None else difference(self.policy.origin, self.pipe)

    def _settings(self) -> dict[str, Any]:
        """What the runs really had."""
        from budcache.pipeline.arguments import usual_frames
        from budcache.pipeline.origin import usual_guidance

        *frames, height, width, _ = (None, None, None, *self.full[0].shape)[-4:]  # of a picture, a clip, or sound
        usual = {"guidance": usual_guidance(self.pipe), "frames": frames[0] or usual_frames(self.pipe)}
        had = {**usual, **settings_of(self.samples[0]), "height": height, "width": width}
        return {name: value for name, value in had.items() if value is not None}

    def _draw(self, sample: Mapping[str, Any]) -> None:
        """A sample in full and under the policy, its networks listened to."""
        from budcache.pipeline.heard import Heard, heard, steps_in

        trunk = self.policy.reuse == "residual"
        with heard(self.pipe, trunk) as times:
            self.full.append(self._picture(sample))
        steps = steps_in(times)
        grid = [float(t) for t in self.pipe.scheduler.timesteps]
        with self._on() as handle, heard(self.pipe, trunk) as served_times:
            self.served.append(self._picture(sample))
            inner = [float(t) for t in self.pipe.scheduler.inner.timesteps]
        self.made.append(Heard.of(self.policy, steps, served_times, grid, inner, handle.stats().last_run_calls))

    def _picture(self, sample: Mapping[str, Any], output_type: str = "np") -> Any:
        from budcache.storage import media

        output = self.pipe(**fresh(sample), num_inference_steps=self.policy.steps, output_type=output_type)
        return np.asarray(media.samples(output)[0]) if output_type == "np" else None

    @contextmanager
    def _on(self) -> Iterator[Any]:
        from budcache.pipeline import applied

        with applied(self.pipe, self.policy) as handle:
            yield handle

    def _calls(self) -> Promise:
        counts = sorted({made.calls for made in self.made})
        expected = sorted({made.expected for made in self.made})
        if any(made.steps is None for made in self.made):
            text = f"the scheduler counted {counts}, but the network's calls cannot be told apart by step here"
            return Promise("calls", None, text)
        wrong = [made for made in self.made if made.calls != made.expected or not made.whole]
        of = f"of {self.policy.steps} calls on {several(len(self.made), 'sample')}"
        if wrong:
            return Promise("calls", False, f"{counts} {of}, but {expected} are promised")
        return Promise("calls", True, f"exactly {' and '.join(map(str, counts))} {of}")

    def _plan(self) -> Promise:
        if any(made.followed is None for made in self.made):
            return Promise("plan", None, "the network's times cannot be read here")
        steps = " ".join(map(str, self.made[0].computed))
        if not all(made.followed for made in self.made):
            return Promise("plan", False, f"the network was not called at the planned noise levels (steps {steps})")
        own = "" if self.policy.sigmas is None else ", on the policy's own noise levels"
        return Promise("plan", True, f"the network was called at steps {steps} and nowhere else{own}")

    def _removal(self) -> Promise:
        """The pipeline draws what it drew before; where it does not repeat itself anyway, nothing can be said."""
        again = self._picture(self.samples[0])
        if np.array_equal(again, self.full[0]):
            return Promise("removal", True, "the full run after removal is the one before it, bit for bit")
        if not np.array_equal(again, self._picture(self.samples[0])):
            return Promise("removal", None, "this pipeline does not repeat itself bit for bit even without a policy")
        return Promise("removal", False, "the full run after removal is not the one before it")

    def _paired(self) -> tuple[Speed, float | None]:
        """Full and served runs in turns, down to their latents, until their ratio is known."""
        from budcache.pipeline.clock import Clock

        clock, made = Clock(self.pipe), self.made[0]

        def pair(turn: int, _: object) -> list[Pair]:
            sample = self.samples[turn % len(self.samples)]
            order = (False, True) if turn % 2 else (True, False)
            took = {serve: self._timed(clock, sample, serve) for serve in order}
            return [Pair(took[False], made.full_calls, took[True], made.calls)]

        (pairs,) = enough(pair)
        return pace(pairs), median(each.own for each in pairs) / made.calls

    def _timed(self, clock: Any, sample: Mapping[str, Any], serve: bool) -> float:
        def run() -> None:
            self._picture(sample, "latent")

        if not serve:
            return float(clock.time(run, to_the_end=True)[1].loop)
        with self._on():
            return float(clock.time(run, to_the_end=True)[1].loop)
