"""The comparison itself: every method draws the same prompts from the same noise, one sample at a time."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from budcache.comparison.folder import Folder, FolderError, rounded
from budcache.comparison.methods import METHODS, UNTAUGHT, Ready, Workshop, plain, title, usual
from budcache.comparison.result import FULL, Comparison, Entry, LeftOut, Measure, Tried
from budcache.errors import BudcacheError, BudcacheWarning, FileError, SearchError
from budcache.jobs.config import check_budgets
from budcache.mask import Mask
from budcache.metrics import Metric, metric
from budcache.metrics.base import Frame
from budcache.policy import Ladder
from budcache.samples.samples import digest, settings_of, take_samples
from budcache.strategies import read_history
from budcache.wording import quote

__all__ = ["EVALUATION_SEED", "Progress", "compact", "compare"]

EVALUATION_SEED = 10_000  # far from the seeds of the search, which count up from 0


@dataclass(frozen=True)
class Progress:
    """How far a comparison is."""

    text: str
    done: int  # samples drawn, of all methods
    total: int


def compare(
    pipe: Any,
    *,
    steps: int,
    budgets: Iterable[int],
    prompts: Sequence[str],
    calibration: Sequence[str],
    folder: str | os.PathLike[str],
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] = ("psnr", "ssim"),
    policies: Mapping[str, Ladder] | None = None,
    seed: int = 0,
    batch: int = 1,
    watch: Callable[[Progress], None] | None = None,
    **call: Any,
) -> Comparison:
    """Compare methods on a pipeline at the same budgets.

    Every threshold is bisected to its budget on the first few calibration prompts. Samples are then drawn one at a
    time, and full runs are timed just before and after each method, so a speed-up is one of the same minute.

    Args:
        pipe: any diffusers pipeline; it is left as it is.
        steps: K of the full run.
        budgets: model calls per sample to compare at.
        prompts: what to measure on.
        calibration: other prompts, to search, fit and tune on.
        folder: where pictures and finished methods are kept; the same call goes on with what is there.
        methods: names from `METHODS`; None is all that are installed, without the slow published search. The full run
            always takes part. A method that cannot serve this pipeline is left out, with its reason.
        metrics: names from `metrics.METRICS`.
        policies: ladders to compare as well, by name; one called "budcache" is taken instead of a search.
        seed: of the search; prompt i is drawn from noise of seed + 10 000 + i.
        batch: samples at once while searching and tuning; measuring is always one at a time.
        watch: told how far it is.
        **call: keyword arguments of the pipeline that all samples share: sizes, guidance.
    """
    wanted, given = sorted(set(budgets)), dict(policies or {})
    check_budgets(tuple(wanted), steps)
    names = list(dict.fromkeys([*(usual() if methods is None else methods), *given]))
    for name in names:
        if name not in METHODS and name not in given:
            raise SearchError(f"there is no method {name!r}. Choose from {', '.join(METHODS)}.")
    if batch < 1:
        raise SearchError(f"batch must be at least 1, got {batch}.")
    if not prompts:
        raise SearchError("there are no prompts to measure on. Give a few that are not used for calibration.")
    learned = take_samples(calibration, (), call) if calibration else []
    if not learned and (lacking := [name for name in names if name not in (*given, *UNTAUGHT)]):
        raise SearchError(f"{title(lacking[0])} has to be calibrated. Give prompts for that, other than the measured.")
    if shared := set(prompts) & set(calibration):
        warnings.warn(
            f"{len(shared)} of the prompts are used both to calibrate and to measure, such as {quote(min(shared))}; "
            "what is measured on them flatters.",
            BudcacheWarning,
            stacklevel=2,
        )
    judges = [metric(name, str(pipe.device)) for name in dict.fromkeys(metrics)]
    for judge in judges:
        judge.prepare()  # what is missing is said before the work, not after it
    facts = _facts(pipe, steps, [{**call, "prompt": text} for text in prompts], seed, call)
    identity = facts["origin"].model_dump(mode="json", exclude={"versions"}) | {
        "calibration prompts": digest(learned),
        "metrics": [judge.name for judge in judges],
        **{name: facts[name] for name in ("steps", "dtype", "device")},
        "batch": batch,
    }
    with Folder(folder, identity) as kept:
        total = len(prompts) * (1 + len(names) * len(wanted))
        bench = _Bench(pipe, list(prompts), call, seed + EVALUATION_SEED, judges, kept, steps, total, watch)
        shop = Workshop(pipe, steps, wanted, learned, kept.path, given, seed, batch, bench.say)
        entries, left_out = [bench.full()], list[LeftOut]()
        for name in names:
            reasons: dict[str, list[int]] = {}
            for budget in wanted:
                try:
                    entries.append(bench.entry(name, budget, shop))
                except (FileError, FolderError):
                    raise
                except BudcacheError as error:
                    bench.done += len(prompts)
                    reasons.setdefault(str(error), []).append(budget)
            left_out += [
                LeftOut(method=name, title=title(name), budgets=tuple(those), reason=reason)
                for reason, those in reasons.items()
            ]
        return Comparison(
            **facts,
            budgets=tuple(wanted),
            prompts=tuple(prompts),
            calibration=len(learned),
            measures=tuple(_measure(judge) for judge in judges),
            entries=tuple(entries),
            left_out=tuple(left_out),
            history=_history(kept),
        )


def compact(
    pipe: Any,
    ladder: Ladder,
    plain_ladder: Ladder,
    *,
    prompts: Sequence[str],
    calibration: Sequence[str],
    folder: str | os.PathLike[str],
    budgets: Iterable[int] = (5, 8),
    methods: Sequence[str] = ("fewer-steps", "uniform", "teacache", "magcache", "taylorseer"),
    **options: Any,
) -> Comparison:
    """A short comparison of ladders that are there already: what a demo has time for."""
    return compare(
        pipe,
        steps=ladder.steps,
        budgets=budgets,
        prompts=prompts,
        calibration=calibration,
        folder=folder,
        methods=methods,
        policies={"budcache-plain": plain_ladder, "budcache": ladder},
        **options,
    )


@dataclass
class _Bench:
    """Draws, times and measures, one sample at a time."""

    pipe: Any
    prompts: list[str]
    call: Mapping[str, Any]
    seed: int
    judges: list[Metric]
    kept: Folder
    steps: int
    total: int
    watch: Callable[[Progress], None] | None
    done: int = 0
    warm: bool = False

    def say(self, text: str) -> None:
        if self.watch is not None:
            self.watch(Progress(text, self.done, self.total))

    def full(self) -> Entry:
        """The full run, which the others are measured against."""
        known = self._known(FULL, self.steps, "")
        return known or self._run(FULL, self.steps, plain(self.steps), "")

    def entry(self, method: str, budget: int, shop: Workshop) -> Entry:
        """A method at a budget, from the folder if it is finished there."""
        made_of = shop.made_of(method)
        known = self._known(method, budget, made_of)
        return known or self._run(method, budget, shop.ready(method, budget), made_of)

    def _known(self, method: str, budget: int, made_of: str) -> Entry | None:
        found = self.kept.get(method, budget, made_of)
        if found is not None:
            self.done += len(self.prompts)
            self.say(f"{title(method)}, {budget} calls: kept")
        return found

    def _run(self, method: str, budget: int, ready: Ready, made_of: str) -> Entry:
        if not self.warm:  # whatever is set up with the first picture should not count as somebody's time
            self._draw(0, self.steps)
            self.warm = True
        seconds, masks = list[float](), list[Mask]()
        values: dict[str, list[float]] = {
            judge.name: [] for judge in self.judges if method != FULL or not judge.reference
        }
        pace = [self._draw(0, self.steps)[1]]
        with ready.running() as last_mask:
            for number, prompt in enumerate(self.prompts):
                self.say(f"{title(method)}, {budget} calls")
                sample, time_taken = self._draw(number, ready.steps)
                seconds.append(time_taken)
                masks.append(last_mask())
                self.kept.keep((method, budget), number, sample)
                if method == FULL:
                    self.kept.keep_reference(number, sample)
                reference = self.kept.reference(number)
                for judge in self.judges:
                    if judge.name in values:
                        values[judge.name].append(judge(rounded(sample), reference, prompt))
                self.done += 1
        pace.append(self._draw(len(self.prompts) - 1, self.steps)[1])
        entry = Entry(
            method=method,
            title=f"full run, {self.steps} steps" if method == FULL else title(method),
            budget=budget,
            calls=tuple(mask.budget for mask in masks),
            seconds=tuple(seconds),
            full_seconds=tuple(pace),
            masks=tuple(masks),
            values={name: tuple(row) for name, row in values.items()},
            knob=ready.knob,
            learned_on=ready.learned_on,
        )
        self.kept.add(entry, made_of)
        return entry

    def _draw(self, number: int, steps: int) -> tuple[Frame, float]:
        """One sample, and the seconds that the pipeline took for it."""
        import torch

        call = {**self.call, "prompt": self.prompts[number], "num_inference_steps": steps, "output_type": "np"}
        call["generator"] = torch.Generator("cpu").manual_seed(self.seed + number)
        begin = time.perf_counter()
        output = self.pipe(**call)  # as numbers, so a GPU has finished when it returns
        seconds = time.perf_counter() - begin
        found = getattr(output, "images", None)
        found = getattr(output, "frames", None) if found is None else found
        if found is None:
            raise SearchError(f"{type(self.pipe).__name__} returned neither images nor frames. It cannot be compared.")
        return np.asarray(found[0], np.float32), seconds


def _facts(pipe: Any, steps: int, samples: list[dict[str, Any]], seed: int, call: Mapping[str, Any]) -> dict[str, Any]:
    """On what, and how, it is measured."""
    import torch

    from budcache.pipeline import describe

    device = torch.device(pipe.device)
    return {
        "origin": describe(pipe, prompts=len(samples), prompts_hash=digest(samples), seed=seed, **settings_of(call)),
        "steps": steps,
        "seed": seed + EVALUATION_SEED,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "dtype": str(getattr(pipe, "dtype", "")).removeprefix("torch."),
    }


def _measure(judge: Metric) -> Measure:
    names = ("name", "title", "unit", "digits", "higher", "reference")
    return Measure(**{name: getattr(judge, name) for name in names})


def _history(kept: Folder) -> tuple[Tried, ...]:
    """The convergence of our search, if it took place in this folder."""
    file = kept.path / "search.ledger.jsonl"
    if not file.exists():
        return ()
    return tuple(
        Tried(budget=step.mask.budget, loss=step.loss, calls=step.sample_calls, phase=step.phase)
        for step in read_history(file)
    )
