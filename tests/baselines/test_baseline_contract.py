"""The contract for every method we ship, on every kind of trunk; and methods that break it."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
from kinds import HERE, NATIVE, STEPS, calibrated, fits, known, sample

pytest.register_assert_rewrite("budcache.testing")

from budcache import Mask  # noqa: E402
from budcache.baselines import Knob, Native, StaticBranch, caching  # noqa: E402
from budcache.baselines.installed import Installed  # noqa: E402
from budcache.errors import SearchError  # noqa: E402
from budcache.testing import BaselineContract  # noqa: E402

KINDS = ("flux-true-cfg", "wan-t2v", "wan22", "qwen-image", "sd3", "z-image-cfg")
QUICK = KINDS[:1]  # the others are among the slow tests: they take three minutes


def case(name, kind):
    """One method on one kind. Its tests run in one process, which has to tune it only once."""
    marks = [pytest.mark.xdist_group(f"{name} on {kind}"), *([] if kind in QUICK else [pytest.mark.slow])]
    return pytest.param(name, kind, marks=marks)


CASES = [case(name, kind) for kind in KINDS for name in HERE if fits(name, kind)]
HANDOVER = 3  # the first step of wan22's second expert, which has nothing to reuse then


class OnTheZoo(BaselineContract):
    steps = STEPS
    kind = "flux"

    def pipe(self):
        return known(self.kind)[1]

    def sample(self, seed=0):
        return sample(known(self.kind)[0], seed)

    def record(self):
        return known(self.kind)[2]

    @property
    def other_size(self):
        size = 32 if self.kind.startswith(("wan", "qwen")) else 64
        return {"height": size, "width": size}


@pytest.mark.parametrize(("name", "kind"), CASES)
class TestShipped(OnTheZoo):
    @pytest.fixture(autouse=True)
    def _choose(self, name, kind):
        self.name, self.kind = name, kind
        if kind == "wan22" and name not in NATIVE:
            self.near = 3  # their state is the transformer's: each expert begins its run with all its first steps

    def method(self):
        return calibrated(self.kind, self.name)

    def test_a_static_method_runs_its_mask(self):
        if self.kind != "wan22":
            super().test_a_static_method_runs_its_mask()
        elif self.name in NATIVE and (tuned := self.tuned()).static:
            with caching(self.pipe(), tuned, STEPS) as runs:
                self._run()
            assert runs.masks == [Mask.of(STEPS, {*tuned.mask().computed, HANDOVER})]


# What follows breaks the contract, each in one way.


@dataclass(frozen=True, kw_only=True)
class Honest(Native):
    """The base of the others; it breaks nothing."""

    name: ClassVar[str] = "honest"
    knob: ClassVar[Knob] = Knob("interval", most=1, fewest=100, whole=True)
    static: ClassVar[bool] = True
    interval: int = 2

    @classmethod
    def calibrated(cls, record):
        return cls(steps=record.steps)

    def mask(self, steps=None):
        return Mask.of(steps or self.steps, range(0, steps or self.steps, self.interval))

    def branch(self, steps, number):
        return StaticBranch(self.mask(steps))


class TestHonest(OnTheZoo):
    method = Honest


class TestHonestWithItsSettings(OnTheZoo):
    method = Honest(steps=STEPS, interval=3)


class Nameless(Honest):
    name = " "


class KnobOfNothing(Honest):
    knob = Knob("threshold")


class Moody(Honest):
    times = itertools.count(2)

    @classmethod
    def calibrated(cls, record):
        return cls(steps=record.steps, interval=next(cls.times))


class NeverFull(Honest):
    def mask(self, steps=None):
        return Mask((*super().mask(steps).bits[:-1], False))


class OtherLevels(Honest):
    def sigmas(self, sigmas, steps):
        return sigmas**1.1


class Idle(Honest):
    """Computes every step, whatever its knob says."""

    def mask(self, steps=None):
        return Mask.full(steps or self.steps)


class OffBudget(Honest):
    """Skips one step, whatever its knob says."""

    def mask(self, steps=None):
        bits = list(super().mask(steps).bits)
        return Mask((True, self.interval == 1, *[True] * (len(bits) - 2)))


class Liar(Honest):
    def branch(self, steps, number):
        return StaticBranch(Mask(self.mask(steps).bits[:1] + self.mask(steps).bits[:-1]))


class Undeclared(Honest):
    static = False


class MixingBranch(StaticBranch):
    def skipped(self, here):
        return super().skipped(here).mean(0, keepdim=True).expand_as(here.hidden)


class Mixing(Honest):
    """The samples of a batch are not kept apart."""

    def branch(self, steps, number):
        return MixingBranch(self.mask(steps))


class WornBranch(StaticBranch):
    def __init__(self, mask, worn):
        super().__init__(mask)
        self.worn = worn

    def skipped(self, here):
        self.worn.append(None)
        return super().skipped(here) * 0.99 ** len(self.worn)


@dataclass(frozen=True, kw_only=True)
class Wearing(Honest):
    """Its state is the method's own, and outlives a run."""

    worn: list[None] = field(default_factory=list, repr=False)

    def branch(self, steps, number):
        return WornBranch(self.mask(steps), self.worn)


class TidiedBranch(WornBranch):
    def decide(self, here):
        if here.step == here.steps - 1:
            self.worn.clear()
        return super().decide(here)


class TidiedAtTheEnd(Wearing):
    """The same, but for runs that come to their last step."""

    def branch(self, steps, number):
        return TidiedBranch(self.mask(steps), self.worn)


@dataclass(frozen=True, kw_only=True)
class Hoarding(Honest):
    kept: list[Any] = field(default_factory=list, repr=False)

    def branch(self, steps, number):
        self.kept.append(super().branch(steps, number))
        return self.kept[-1]


class ChangingItself(Honest):
    def branch(self, steps, number):
        mask = self.mask(steps)
        object.__setattr__(self, "steps", steps + 1)
        return StaticBranch(mask)


@dataclass(frozen=True, kw_only=True)
class Elsewhere(Installed):
    """Only pretends to skip."""

    name: ClassVar[str] = "elsewhere"
    knob: ClassVar[Knob] = Honest.knob
    interval: int = 2
    calibrated = classmethod(Honest.calibrated.__func__)

    @contextmanager
    def installed(self, pipe, steps, tally):
        calls = itertools.count()
        hook = pipe.transformer.register_forward_pre_hook(
            lambda *_: tally.saw_compute() if next(calls) % self.interval == 0 else None
        )
        try:
            yield
        finally:
            hook.remove()


class Untidy(Elsewhere):
    @contextmanager
    def installed(self, pipe, steps, tally):
        with super().installed(pipe, steps, tally):
            hook = pipe.transformer.proj_out.register_forward_hook(lambda *_: None)
            yield
        LEFT.append(hook)


LEFT: list[Any] = []


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (Nameless, "is_a_value_with_a_name_and_a_knob"),
        (KnobOfNothing, "is_a_value_with_a_name_and_a_knob"),
        (Moody, "calibrating_again_gives_the_same"),
        (NeverFull, "computing_everything_changes_nothing"),
        (OtherLevels, "computing_everything_changes_nothing"),
        (Idle, "tuned_to_a_budget_it_comes_near_and_skips"),
        (OffBudget, "tuned_to_a_budget_it_comes_near_and_skips"),
        (Liar, "a_static_method_runs_its_mask"),
        (Undeclared, "a_static_method_runs_its_mask"),
        (Mixing, "a_static_method_treats_a_batch_as_its_samples"),
        (Wearing, "a_run_does_not_depend_on_those_before"),
        (TidiedAtTheEnd, "a_run_left_by_an_exception_leaves_nothing"),
        (Hoarding, "nothing_is_kept_after_a_run"),
        (ChangingItself, "the_pipeline_is_left_as_it_was"),
        (Elsewhere, "makes_the_calls_that_are_counted"),
        (Untidy, "the_pipeline_is_left_as_it_was"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_contract_notices(broken, test):
    contract = OnTheZoo()
    contract.method = broken
    try:
        with pytest.raises((AssertionError, SearchError)):  # tuning refuses a method that never skips
            getattr(contract, f"test_{test}")()
    finally:
        for hook in LEFT:
            hook.remove()
