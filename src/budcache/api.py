"""The door: what users call on a pipeline to find policies."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from budcache.errors import SearchError
from budcache.mask import MAX_STEPS, Mask
from budcache.policy import Ladder, Origin, Policy, Quality, Reuse
from budcache.search import STRATEGIES, Evaluated, Found, Ledger, Limits, Strategy, drive
from budcache.search import strategy as by_name

if TYPE_CHECKING:
    from budcache.calibration import Calibration, Objective

__all__ = ["Searched", "check_budgets", "search", "search_in_full"]

FINALISTS = 3  # per budget, judged on the selection samples
STATE_MEMORY = 2_000_000_000  # bytes for remembered states


@dataclass(frozen=True)
class Searched:
    """A search's ladder, and how it came about."""

    ladder: Ladder
    found: Found
    calls: int  # sample-calls: model calls times samples; teachers, selection and measuring included


def search(pipe: Any, **options: Any) -> Ladder:
    """Find the policies of one or several budgets for a pipeline: `search_in_full`'s ladder, with the same options."""
    return search_in_full(pipe, **options).ladder


def search_in_full(
    pipe: Any,
    *,
    steps: int,
    budget: int | None = None,
    budgets: Iterable[int] = (),
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    strategy: str | Strategy = "ladder",
    reuse: Reuse = "output",
    seed: int = 0,
    selection: int | None = None,
    batch: int = 1,
    objective: Literal["latent", "pixel"] | Objective = "latent",
    limits: Limits | None = None,
    ledger: str | os.PathLike[str] | None = None,
    state_memory: int = STATE_MEMORY,
    watch: Callable[[Evaluated], None] | None = None,
    **call: Any,
) -> Searched:
    """Find the policies of one or several budgets for a pipeline.

    Args:
        pipe: any diffusers pipeline; it is left exactly as it is.
        steps: K of the full run that is to be imitated.
        budget: model calls per sample to search for; or
        budgets: several of them, from one search.
        prompts: what to calibrate on; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        strategy: how to search: a name from `search.STRATEGIES`, or a strategy.
        reuse: "output" or "residual".
        seed: of the search; sample i starts from noise of seed + i, unless it brings a generator or latents.
        selection: how many of the samples, the last ones, to keep out of the search and to judge its finalists by;
            None is a quarter of them.
        batch: how many samples to run at once.
        objective: what to keep small: "latent", the mean squared error of final latents; "pixel", that of decoded
            pictures, for one call more per mask and sample; or any function of student, teacher and run.
        limits: where to stop even if the strategy would go on.
        ledger: a file in which every score is kept, so that a killed search can go on.
        state_memory: bytes for remembered states; fewer cost more calls but give the same losses.
        watch: called with every evaluation.
        **call: keyword arguments of the pipeline that all samples share: sizes, guidance.
    """
    from budcache.pipeline import describe

    wanted = sorted({*budgets, *([] if budget is None else [budget])})
    plan = by_name(strategy) if isinstance(strategy, str) else strategy
    given = _samples(prompts, samples, call)
    check_budgets(wanted, steps)
    if batch < 1:
        raise SearchError(f"batch must be at least 1, got {batch}.")
    kept_out = len(given) // 4 if selection is None else selection
    if not 0 <= kept_out < len(given):
        raise SearchError(
            f"{kept_out} of {len(given)} samples for selection leave none to search on. "
            f"Choose a selection from 0 to {len(given) - 1}."
        )
    if not callable(objective) and objective not in ("latent", "pixel"):
        raise SearchError(f"there is no objective {objective!r}. Use 'latent', 'pixel' or a function.")
    searched_on = len(given) - kept_out
    job = _Job(pipe, steps, reuse, batch, objective, state_memory)
    origin = describe(
        pipe,
        prompts=len(given),
        prompts_hash=_hash(given),
        seed=seed,
        strategy=next((name for name, known in STRATEGIES.items() if known == plan), repr(plan)),
        **_settings(given[0]),
    )
    with ExitStack() as stack:
        keep = None
        if ledger is not None:
            keep = Ledger(ledger, _identity(origin, job, plan, searched_on))
            stack.callback(keep.close)
        calibration = stack.enter_context(job.calibration(given[:searched_on], seed))
        scoring = job.told(calibration)
        found = drive(
            plan,
            scoring if keep is None else keep.remembering(scoring, lambda: calibration.calls),
            steps=steps,
            budgets=wanted,
            seed=seed,
            limits=limits,
            calls=lambda: calibration.calls,
            watch=watch,
        )
        calls = calibration.calls + (0 if keep is None else keep.spent)
    finalists = {b: found.best(b, FINALISTS) for b in wanted if found.best(b)}
    if not finalists:
        raise SearchError(f"the search stopped at its {found.stopped} before any budget was reached. Allow it more.")
    if kept_out:
        with job.calibration(given[searched_on:], seed + searched_on) as judge:
            chosen = {b: min(masks, key=lambda mask: judge.score(mask).loss) for b, masks in finalists.items()}
            quality = job.measure(judge, given[searched_on:], chosen, found)
            calls += judge.calls + kept_out * (1 + len(chosen))  # measuring opens the pipeline again for each picture
    else:
        chosen = {b: masks[0] for b, masks in finalists.items()}
        quality = {b: Quality(calibration_loss=found.scores[mask].loss) for b, mask in chosen.items()}
    origin = origin.model_copy(update={"calls": calls})
    rungs = [Policy(mask=mask, reuse=reuse, origin=origin, quality=quality[b]) for b, mask in chosen.items()]
    return Searched(Ladder.of(rungs), found, calls)


@dataclass(frozen=True)
class _Job:
    """What all parts of one search have in common."""

    pipe: Any
    steps: int
    reuse: Reuse
    batch: int
    objective: Literal["latent", "pixel"] | Objective
    state_memory: int

    @contextmanager
    def calibration(self, samples: Sequence[Mapping[str, Any]], seed: int) -> Iterator[Calibration]:
        """Hold the pipeline open on samples, teachers run; sample i has seed + i."""
        from budcache.calibration import Calibration, latent_mse
        from budcache.pipeline import PipelineModel, merge

        seeded = [_seeded(sample, seed + i) for i, sample in enumerate(samples)]
        with ExitStack() as stack, _memory_said():
            runs = []
            for begin in range(0, len(seeded), self.batch):
                call = merge(seeded[begin : begin + self.batch]) if self.batch > 1 else seeded[begin]
                runs.append(stack.enter_context(PipelineModel(self.pipe, steps=self.steps, reuse=self.reuse, **call)))
            if runs[0].begin:
                raise SearchError("a search needs whole runs, but these start midway. Use strength=1.")
            objective = self.objective
            if objective == "latent":
                objective = latent_mse
            elif objective == "pixel":
                parts = [samples[begin : begin + self.batch] for begin in range(0, len(samples), self.batch)]
                objective = _PixelError(
                    self.pipe, self.steps, {id(run): part for run, part in zip(runs, parts, strict=True)}
                )
            yield Calibration(runs, objective=objective, state_memory=self.state_memory)

    def told(self, calibration: Calibration) -> Callable[[Any], Any]:
        """Scoring as the driver wants it."""

        def score(ask: Any) -> Any:
            with _memory_said():
                return calibration.score(ask.mask)

        return score

    def measure(
        self, judge: Calibration, samples: Sequence[Mapping[str, Any]], chosen: dict[int, Mask], found: Found
    ) -> dict[int, Quality]:
        """The quality of each chosen mask on samples that the search has not seen."""
        import numpy as np

        from budcache.metrics import psnr
        from budcache.pipeline import decode

        def pictures(run: int, x: Any) -> list[Any]:
            part = samples[run * self.batch : (run + 1) * self.batch]
            return decode(self.pipe, x, part, steps=self.steps)

        full = [pictures(run, judge.teacher(run)) for run in range(len(judge.runs))]
        qualities = {}
        for budget, mask in chosen.items():
            ratios = [
                min(psnr(picture, reference), 100.0)  # a perfect picture is infinitely near; JSON knows no infinity
                for run, references in enumerate(full)
                for picture, reference in zip(pictures(run, judge.student(mask, run)), references, strict=True)
            ]
            qualities[budget] = Quality(
                calibration_loss=found.scores[mask].loss,
                loss=judge.score(mask).loss,
                psnr=float(np.mean(ratios)),
                psnr_p5=float(np.percentile(ratios, 5)),
                psnr_worst=float(np.min(ratios)),
                samples=len(ratios),
            )
        return qualities


class _PixelError:
    """Mean squared error of decoded pictures of values from -1 to 1, as in the authors' search on Wan."""

    def __init__(self, pipe: Any, steps: int, samples: dict[int, Sequence[Mapping[str, Any]]]) -> None:
        self.pipe, self.steps, self.samples, self.calls = pipe, steps, samples, 0
        self.teachers: dict[int, list[Any]] = {}

    def __call__(self, student: Any, teacher: Any, run: Any) -> float:
        if id(run) not in self.teachers:
            self.teachers[id(run)] = self._decode(teacher, run)
        pairs = zip(self._decode(student, run), self.teachers[id(run)], strict=True)
        return float(sum(4 * ((a - b) ** 2).mean() for a, b in pairs) / len(student))

    def _decode(self, x: Any, run: Any) -> list[Any]:
        from budcache.pipeline import decode

        self.calls += len(x)
        return decode(self.pipe, x, self.samples[id(run)], steps=self.steps)


def _samples(
    prompts: Sequence[str], samples: Sequence[Mapping[str, Any]], call: Mapping[str, Any]
) -> list[dict[str, Any]]:
    if isinstance(prompts, str):
        prompts = [prompts]
    if prompts and samples:
        raise SearchError("prompts and samples were both given. A sample may have a prompt: put them there.")
    given = [{**call, **sample} for sample in (samples or [{"prompt": prompt} for prompt in prompts])]
    if not given:
        raise SearchError("there are no prompts to calibrate on. Give a few, eight or so, as different as your use.")
    return given


def check_budgets(budgets: Sequence[int], steps: int) -> None:
    """Refuse budgets that no mask of so many steps can have."""
    if not budgets:
        raise SearchError("there is no budget to search for. Give budget= or budgets=, in model calls per sample.")
    if not 1 <= steps <= MAX_STEPS:
        raise SearchError(f"a run of {steps} steps is not possible. Use 1 to {MAX_STEPS} steps.")
    for budget in budgets:
        if not 1 <= budget <= steps:
            raise SearchError(f"a budget of {budget} does not fit {steps} steps. Choose budgets from 1 to {steps}.")


def _seeded(sample: Mapping[str, Any], seed: int) -> dict[str, Any]:
    import torch

    if sample.get("generator") is not None or sample.get("latents") is not None:
        return dict(sample)
    return {**sample, "generator": torch.Generator("cpu").manual_seed(seed)}


def _settings(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What of a sample's arguments a policy's origin has a field for."""
    fields = {"height": "height", "width": "width", "num_frames": "frames", "guidance_scale": "guidance"}
    return {ours: sample[theirs] for theirs, ours in fields.items() if sample.get(theirs) is not None}


def _hash(samples: Sequence[Mapping[str, Any]]) -> str:
    """A short name for a set of samples, the same wherever they are the same."""
    digest = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            value = sample[name]
            digest.update(name.encode())
            if hasattr(value, "detach"):
                value = value.detach().cpu().float().numpy()
            elif hasattr(value, "initial_seed"):
                value = value.initial_seed()
            digest.update(value.tobytes() if hasattr(value, "tobytes") else json.dumps(value, default=repr).encode())
    return digest.hexdigest()[:16]


def _identity(origin: Origin, job: _Job, plan: Strategy, searched_on: int) -> dict[str, Any]:
    """What the scores in a ledger depend on."""
    of_others = {"prompts", "strategy", "teacher_steps", "calls", "versions"}
    return origin.model_dump(mode="json", exclude=of_others) | {
        "number format": str(getattr(job.pipe, "dtype", None)).removeprefix("torch."),
        "steps": job.steps,
        "reuse": job.reuse,
        "batch": job.batch,
        "samples searched on": searched_on,
        "strategy": repr(plan),
        "objective": getattr(job.objective, "__name__", str(job.objective)),
    }


@contextmanager
def _memory_said() -> Iterator[None]:
    """An out-of-memory error as a sentence."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise SearchError(
            "the model ran out of memory. Use a smaller batch or size, or offloading; what was scored is in the ledger."
        ) from error
