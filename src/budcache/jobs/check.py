"""`budcache.check`: what a policy promises, tried on the user's own machine and model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from budcache.calibration.aggregate import mean
from budcache.chosen import PolicyLike, choose
from budcache.comparison.timing import Pair, Speed, enough, pace, speed
from budcache.jobs.setup import check_call
from budcache.metrics import psnr
from budcache.options import known_options
from budcache.policy import Policy, Quality
from budcache.samples.samples import fresh, seeded, settings_of, take_samples
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.pipeline.heard import Made

__all__ = ["Checked", "Promise", "check"]

PROMPTS = ("a lighthouse by the sea at dusk", "a bowl of fruit on a wooden table")
SEED = 20_000  # far from those of searches and comparisons
MARKS = {True: "✓", False: "✗", None: "?"}


@dataclass(frozen=True)
class Promise:
    """One promise: whether it was kept, and a sentence with the figures.

    Attributes:
        name: "calls", "plan", "removal", "quality" or "speed".
        kept: None where it cannot be told here.
        text: what was found.
    """

    name: str
    kept: bool | None
    text: str

    def __str__(self) -> str:
        return f"{MARKS[self.kept]} {self.name:8} {self.text}"


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
) -> Checked:
    """Try on a pipeline what a policy promises: exact calls, the plan, removal, quality and speed.

    Args:
        pipe: the pipeline; it is left as it is.
        policy: a policy, a ladder (with `budget`), or the path of either.
        budget: which rung of a ladder to try.
        prompts: what to draw; two of our own if nothing is given; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        call: keyword arguments of the pipeline that all samples share: size, guidance.
        seed: of the first sample's noise; the next ones count up.
        timed: whether to measure the speed as well, by pairs of full and served runs.

    Returns:
        The promises one by one; `kept` if none was broken.
    """
    chosen = choose(policy, budget)
    given = take_samples(prompts or (() if samples else PROMPTS), samples, call)
    check_call(pipe, given, "check", {"num_inference_steps": None, "output_type": None, "return_dict": None})
    return _Check(pipe, chosen, [seeded(sample, seed + i) for i, sample in enumerate(given)]).run(timed)


@dataclass
class _Check:
    pipe: Any
    policy: Policy
    samples: Sequence[Mapping[str, Any]]
    full: list[Any] = field(default_factory=list)  # pictures
    served: list[Any] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)

    def run(self, timed: bool) -> Checked:
        for sample in self.samples:
            self._draw(sample)
        ratios = tuple(min(psnr(one, other), 100.0) for one, other in zip(self.served, self.full, strict=True))
        pairs, per_call = self._paired() if timed else (speed((), (), (), ()), None)
        return Checked(
            budget=self.policy.budget,
            steps=self.policy.steps,
            promises=(
                self._calls(),
                self._plan(),
                self._removal(),
                quality(self.policy, ratios, settings_of(self.samples[0])),
                _speed(pairs, per_call),
            ),
            calls=tuple(made.calls for made in self.made),
            psnr=ratios,
            seconds_per_call=per_call,
            speed=pairs,
        )

    def _draw(self, sample: Mapping[str, Any]) -> None:
        """A sample in full and under the policy, its networks listened to."""
        from budcache.pipeline.heard import Made, heard, steps_in

        trunk = self.policy.reuse == "residual"
        with heard(self.pipe, trunk) as times:
            self.full.append(self._picture(sample))
        steps = steps_in(times)
        grid = [float(t) for t in self.pipe.scheduler.timesteps]
        with self._on() as handle, heard(self.pipe, trunk) as served_times:
            self.served.append(self._picture(sample))
            inner = [float(t) for t in self.pipe.scheduler.inner.timesteps]
        self.made.append(Made.of(self.policy, steps, served_times, grid, inner, handle.stats().last_run_calls))

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

        def pair(turn: int) -> Pair:
            sample = self.samples[turn % len(self.samples)]
            order = (False, True) if turn % 2 else (True, False)
            took = {serve: self._timed(clock, sample, serve) for serve in order}
            return Pair(took[False], made.full_calls, took[True], made.calls)

        pairs = enough(pair)
        return pace(pairs), median(each.own for each in pairs) / made.calls

    def _timed(self, clock: Any, sample: Mapping[str, Any], serve: bool) -> float:
        def run() -> None:
            self._picture(sample, "latent")

        if not serve:
            return float(clock.time(run, to_the_end=True)[1].loop)
        with self._on():
            return float(clock.time(run, to_the_end=True)[1].loop)


def quality(policy: Policy, ratios: Sequence[float], settings: Mapping[str, Any]) -> Promise:
    """What was measured on a few samples, against what a policy claims.

    A claim is a mean with its standard error; a few samples have one of their own, by the same spread. Two of both
    together below it, the claim is broken.
    """
    here = f"{mean(list(ratios)):.1f} dB on {several(len(ratios), 'sample')}"
    claim = policy.quality
    if claim is None or claim.psnr is None:
        return Promise("quality", None, f"{here}; the policy claims nothing")
    said = f"{here}; the policy says {claim.text}"
    room = _room(claim, len(ratios))
    if room is None:
        return Promise("quality", None, f"{said}, without a standard error to judge by")
    if mean(list(ratios)) >= claim.psnr - room:
        return Promise("quality", True, f"{said}: within its uncertainty ({claim.psnr - room:.1f} dB and more)")
    excuse = _excuse(policy, settings)
    below = f"{said}: below its uncertainty ({claim.psnr - room:.1f} dB and more)"
    return Promise("quality", None if excuse else False, below + (f"; {excuse}" if excuse else ""))


def _room(claim: Quality, samples: int) -> float | None:
    if claim.psnr_error is None or not claim.samples:
        return None
    spread = claim.psnr_error * math.sqrt(claim.samples)
    return 2 * math.sqrt(claim.psnr_error**2 + spread**2 / samples)


def _excuse(policy: Policy, settings: Mapping[str, Any]) -> str | None:
    """Why a figure below the claim breaks no promise."""
    claim, origin = policy.quality, policy.origin
    if claim is not None and claim.used_to_fit:
        return "the policy was made on the samples of that figure, so on new prompts expect several dB less"
    if origin is not None and origin.teacher_steps not in (None, policy.steps):
        return f"its figure is to the run of {origin.teacher_steps} steps, this one to that of {policy.steps}"
    for name, value in settings.items():
        made = getattr(origin, name, None)
        if made is not None and made != value:
            return f"it was made at {name} {made}, this is {value}"
    return None


def _speed(found: Speed, per_call: float | None) -> Promise:
    each = "" if per_call is None else f"; {per_call:.3g} s a call"
    if not found.known:
        return Promise("speed", None, f"{found.text}{f' by {found.pairs} pairs' if found.pairs else ''}{each}")
    text = f"{found.text} ({found.low:.2f} to {found.high:.2f}) by {found.pairs} pairs of denoising loops{each}"
    return Promise("speed", found.median > 1, text)
