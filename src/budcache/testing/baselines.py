"""Tests for caching methods: what every one of them promises, ready to be run on yours.

    from budcache.testing import BaselineContract

    class TestMine(BaselineContract):
        method = MyMethod

pytest collects the inherited tests; `pytest.register_assert_rewrite("budcache.testing")` before the import makes their
failures tell more. They run the embedded tiny-flux, so nothing is downloaded; override `pipe`, `sample` and `record`
to run them on another pipeline.
"""
# ruff: noqa: D102  (the names of tests say what they test)

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from budcache.baselines import Baseline, Branch, Record, caching, record, tune
from budcache.baselines.pictures import call
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.pipeline.trunk import blocks_of, transformers

__all__ = ["BaselineContract"]


class BaselineContract:
    """What a caching method promises. Subclass it and set `method`.

    Attributes:
        method: the class of the method, to be calibrated on full runs; or one with its settings, or a function (or a
            method of that name) that returns one.
        steps: K.
        budget: the calls that it is tuned to.
        near: how far from the budget it may end, in calls: more than 1 only where the knob is coarse.
        other_size: arguments for a picture of another size than the pipeline's own.
    """

    method: Any
    steps: ClassVar[int] = 8
    budget: ClassVar[int] = 4
    near: ClassVar[int] = 1
    other_size: ClassVar[dict[str, Any]] = {"height": 96, "width": 48}

    # What it is run on

    def pipe(self) -> Any:
        """The pipeline: the same object at every call."""
        return _tiny_flux()

    def sample(self, seed: int = 0) -> dict[str, Any]:
        """Keyword arguments of the pipeline's `__call__`, without the number of steps and the type of output."""
        prompt = ("a red circle", "two blue squares")[seed % 2]
        return {"prompt": prompt, "generator": torch.Generator().manual_seed(seed)}

    def record(self) -> Record:
        """The full runs that the method is calibrated on."""
        return _recorded(self.steps)

    def tuned(self) -> Baseline:
        """The method at the budget, where it has to skip."""
        pipe, method = self.pipe(), self._method()
        key = (id(pipe), self.steps, self.budget, repr(method))
        if key not in _TUNED:
            _TUNED[key] = tune(pipe, method, self.budget, [self.sample(0)], self.steps)
        return _TUNED[key]

    def _method(self) -> Baseline:
        if inspect.isclass(self.method):
            return cast(type[Baseline], self.method).calibrated(self.record())
        method: Baseline = self.method if isinstance(self.method, Baseline) else self.method()
        return method

    def _run(self, seed: int = 0, **more: Any) -> Tensor:
        """The final latents of a run."""
        latents: Tensor = self.pipe()(**call([{**self.sample(seed), **more}], self.steps))[0]
        return latents

    # The tests

    def test_is_a_value_with_a_name_and_a_knob(self) -> None:
        method = self._method()
        assert isinstance(method.name, str) and method.name.strip()
        assert method.steps == self.steps
        assert method.knob.name in {field.name for field in fields(method)}
        assert method.knob.most < method.knob.fewest
        assert method.knob.fewest > 0
        assert getattr(method.tuned(method.knob.most), method.knob.name) == method.knob.most
        assert repr(pickle.loads(pickle.dumps(method))) == repr(method)

    def test_calibrating_again_gives_the_same(self) -> None:
        if inspect.isclass(self.method):
            assert repr(self._method()) == repr(self._method())

    def test_computing_everything_changes_nothing(self) -> None:
        before, method = self._run(), self._method()
        with caching(self.pipe(), method.tuned(method.knob.most), self.steps) as runs:
            assert torch.equal(self._run(), before)
        assert runs.masks == [Mask.full(len(runs.masks[0]))], "a step was skipped at the knob's `most`"

    def test_tuned_to_a_budget_it_comes_near_and_skips(self) -> None:
        before, tuned = self._run(), self.tuned()
        with caching(self.pipe(), tuned, self.steps) as runs:
            fast = self._run()
        (calls,) = runs.calls
        assert abs(calls - self.budget) <= self.near, f"{calls} calls where {self.budget} were wanted"
        assert calls < len(runs.masks[0]), "nothing was skipped"
        assert torch.isfinite(fast).all()
        assert not torch.equal(fast, before)

    def test_makes_the_calls_that_are_counted(self) -> None:
        with _counted(self.pipe()) as every:
            self._run()
        tuned = self.tuned()
        with _counted(self.pipe()) as made, caching(self.pipe(), tuned, self.steps) as runs:
            self._run()
        (ran,) = runs.finished
        branches, odd = divmod(len(every), len(ran.steps))
        assert not odd, "the pipeline itself does not call its transformer equally often at every step"
        assert {len(step) for step in ran.steps} == {branches}, "not every guidance branch was counted"
        assert len(made) == round(ran.calls * branches)

    def test_a_static_method_runs_its_mask(self) -> None:
        method, tuned = self._method(), self.tuned()
        if not method.static:
            try:
                mask = method.mask()
            except SearchError:
                return
            raise AssertionError(f"{mask} is known beforehand, so the method is static. Say so.")
        with caching(self.pipe(), tuned, self.steps) as runs:
            self._run(0)
            self._run(1)
        assert runs.masks == [tuned.mask(self.steps)] * 2
        assert runs.calls == [tuned.planned(self.steps).calls] * 2

    def test_a_static_method_treats_a_batch_as_its_samples(self) -> None:
        tuned = self.tuned()
        if not tuned.static:
            return  # decisions are made for the whole batch
        with caching(self.pipe(), tuned, self.steps) as runs:
            alone = torch.cat([self._run(0), self._run(1)])
            together = self.pipe()(**call([self.sample(0), self.sample(1)], self.steps))[0]
        assert len(set(runs.masks)) == 1
        torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-3)

    def test_a_run_does_not_depend_on_those_before(self) -> None:
        tuned = self.tuned()
        alone: list[tuple[dict[str, Any], Tensor, Mask]] = []
        for more in ({}, self.other_size):
            with caching(self.pipe(), tuned, self.steps) as single:
                latents = self._run(**more)
            alone.append((more, latents, single.masks[0]))
        with caching(self.pipe(), tuned, self.steps) as runs:
            for more, latents, mask in (*alone, alone[0]):
                self._run(1, **more)
                assert torch.equal(self._run(**more), latents)
                assert runs.masks[-1] == mask

    def test_a_run_left_by_an_exception_leaves_nothing(self) -> None:
        before, tuned = self._run(), self.tuned()
        with caching(self.pipe(), tuned, self.steps) as runs:
            wanted = self._run()
            for stop in (1, self.steps // 2):
                kept = self._broken(1, stop)
                assert len(runs.masks) == 1, "a run that was left is not a finished one"
                assert torch.equal(self._run(), wanted), "with the broken run's frames alive"
                assert torch.equal(self._run(callback_on_step_end=_dropping(kept)), wanted), "and let go midway"
                del runs.finished[1:]
        self._broken(0, 2, tuned)
        assert torch.equal(self._run(), before)

    def _broken(self, seed: int, stop: int, method: Baseline | None = None) -> list[BaseException]:
        """Leave a run at a step; the exception that is returned keeps the run's frames alive."""

        def callback(pipe: Any, step: int, time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
            if step == stop:
                raise _Stop
            return {}

        try:
            with contextlib.nullcontext() if method is None else caching(self.pipe(), method, self.steps):
                self._run(seed, callback_on_step_end=callback)
        except _Stop as error:
            return [error]
        raise AssertionError(f"the run has no step {stop}")

    def test_nothing_is_kept_after_a_run(self) -> None:
        tuned = self.tuned()
        gc.collect()
        before = {id(branch) for branch in _alive()}
        with caching(self.pipe(), tuned, self.steps):
            self._run()
            gc.collect()
            assert [branch for branch in _alive() if id(branch) not in before] == []

    def test_the_pipeline_is_left_as_it_was(self) -> None:
        pipe = self.pipe()
        before, tuned = self._run(), self.tuned()
        looks, settings = _looks(pipe), repr(tuned)
        with caching(pipe, tuned, self.steps):
            self._run()
        assert _looks(pipe) == looks
        assert torch.equal(self._run(), before)
        assert repr(tuned) == settings, "a method is a value: what changes belongs into its branches"


class _Stop(Exception):
    """Nobody else's exception."""


_TUNED: dict[tuple[Any, ...], Baseline] = {}


def _dropping(kept: list[BaseException]) -> Any:
    def callback(pipe: Any, step: int, time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if kept:
            kept.clear()
            gc.collect()
        return {}

    return callback


@functools.cache
def _tiny_flux() -> Any:
    from budcache.models import load

    pipe = load("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    return pipe


@functools.cache
def _recorded(steps: int) -> Record:
    contract = BaselineContract()
    return record(contract.pipe(), steps, [contract.sample(seed) for seed in (0, 1)])


def _alive() -> list[Branch]:
    return [each for each in gc.get_objects() if isinstance(each, Branch)]


@contextmanager
def _counted(pipe: Any) -> Iterator[list[None]]:
    """One entry for each time that the last block of a trunk makes queries."""
    seen: list[None] = []
    with contextlib.ExitStack() as undo:
        for transformer in transformers(pipe):
            modules = blocks_of(transformer)[-1].named_modules()
            queries = next(module for name, module in modules if name.split(".")[-1] in ("to_q", "to_qkv"))
            undo.callback(queries.register_forward_pre_hook(lambda *_: seen.append(None)).remove)
        yield seen


def _looks(pipe: Any) -> list[Any]:
    """What a method could forget to take off: the scheduler, replaced modules, forwards and hooks."""
    looks: list[Any] = [id(pipe.scheduler), sorted(vars(pipe))]
    for transformer in transformers(pipe):
        for name, module in transformer.named_modules():
            hooks = [len(vars(module)[each]) for each in sorted(vars(module)) if each.endswith("_hooks")]
            looks.append((name, type(module), id(vars(module).get("forward")), hooks))
    return looks
