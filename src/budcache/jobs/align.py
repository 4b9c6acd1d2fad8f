"""`budcache.align`: the paper's schedule alignment, on a pipeline."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from budcache.errors import SearchError
from budcache.jobs.fit import refined
from budcache.jobs.job import Job, digest, seeded, settings_of, split, take_samples
from budcache.jobs.select import Candidate
from budcache.mask import Mask
from budcache.policy import Ladder, Policy
from budcache.storage.journal import Journal

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.refine import Learned, Lesson, Mean, Update

__all__ = ["align", "put_aside"]

PAPER_RATE, JOINT_RATE = 1e-3, 1e-2
SELECTION = 8  # samples at most that the best is kept by, if not told otherwise


def align(
    pipe: Any,
    policies: Ladder | Policy,
    *,
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    selection: int | None = None,
    epochs: int = 1,
    rate: float | None = None,
    mean: Mean | None = None,
    every: int = 10,
    objective: Literal["latent", "pixel"] = "latent",
    autocast: Literal["bfloat16"] | None = None,
    teacher_steps: int | None = None,
    ledger: str | os.PathLike[str] | None = None,
    watch: Callable[[Policy, Update], None] | None = None,
    **call: Any,
) -> Ladder:
    """Learn the noise levels of policies by gradient (Algorithm 3); where there are blend weights, those with them.

    One update for each sample: the paper takes 100 prompts, once. The policies may be masks of any kind, also all ones:
    a short plain schedule is aligned with `teacher_steps` of the full run.

    Args:
        pipe: the pipeline that the policies are for.
        policies: what to begin with.
        prompts: what to learn on; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        seed: sample i starts from noise of seed + i.
        selection: how many of the samples, the last ones, to keep the best by; None is a quarter, but at most 8.
        epochs: how often to go through the samples to learn on, each time from other noise.
        rate: AdamW's learning rate, which falls along a cosine to zero; there is no weight decay. None is the paper's
            1e-3 for noise levels alone, and 1e-2 where there are blend weights.
        mean: of the samples' errors, what is to become small: "arithmetic", as in the paper, or "geometric", in which
            each counts relative to its own error. None is the first for noise levels alone, the second with weights.
        every: after how many updates to look at the selection samples.
        objective: the squared error of final latents, or of decoded pictures.
        autocast: "bfloat16" to run the model in that number format.
        teacher_steps: of the teacher's run on the pipeline's own schedule; None is the policies' steps.
        ledger: a file in which every update is kept, so that a killed alignment can go on.
        watch: called with the policy at work and every update.
        **call: keyword arguments that all samples share.

    Returns:
        The ladder; a rung that did not gain on the selection samples is as it was.
    """
    import torch

    from budcache.pipeline import frozen
    from budcache.refine.align import check_pace

    ladder = policies if isinstance(policies, Ladder) else Ladder.of([policies])
    given = take_samples(prompts, samples, call)
    learned_on = split(given, put_aside(len(given), selection))
    if learned_on == len(given):
        raise SearchError("aligning needs samples to choose by. Give more prompts, or a selection of at least 1.")
    if objective not in ("latent", "pixel"):
        raise SearchError(f"there is no objective {objective!r} to align by. Use 'latent' or 'pixel'.")
    if mean not in (None, "arithmetic", "geometric"):
        raise SearchError(f"there is no {mean!r} mean. Use 'arithmetic' or 'geometric'.")
    if epochs < 1:
        raise SearchError(f"epochs must be at least 1, got {epochs}.")
    paces = [_Pace.of(rung, epochs, rate, mean, every) for rung in ladder]
    for pace in paces:
        check_pace(pace.rate, every)
    jobs = [Job(pipe, rung.steps, rung.reuse, 1, objective, 0, teacher_steps) for rung in ladder]
    with ExitStack() as stack:
        journal = None
        if ledger is not None:
            settings: dict[str, Any] = {"objective": objective, "autocast": autocast, "seed": seed}
            settings |= {"every": every, "epochs": epochs}
            settings |= {"rate": [pace.rate for pace in paces], "mean": [pace.mean for pace in paces]}
            journal = Journal(
                ledger, _identity(pipe, ladder, given, learned_on, teacher_steps) | settings, of="alignment"
            )
            stack.callback(journal.close)
        stack.enter_context(frozen(pipe))
        if autocast is not None:
            stack.enter_context(torch.autocast(pipe.device.type, getattr(torch, autocast)))
        rungs = []
        teachers: dict[tuple[int, int], Tensor] = {}
        for job, rung, pace in zip(jobs, ladder, paces, strict=True):
            work = _Alignment(job, rung, pace, given, learned_on, seed, teachers)
            rungs.append(work.run(journal, None if watch is None else partial(watch, rung)))
    return Ladder.of(rungs)


def put_aside(samples: int, selection: int | None) -> int:
    """How many of the samples to keep the best by."""
    return min(SELECTION, max(samples // 4, 1)) if selection is None else selection


@dataclass(frozen=True)
class _Pace:
    """How one policy is learned."""

    epochs: int
    rate: float
    mean: Mean
    every: int

    @classmethod
    def of(cls, rung: Policy, epochs: int, rate: float | None, mean: Mean | None, every: int) -> _Pace:
        """What was asked for; otherwise the paper's for noise levels alone, and what was found to suit weights."""
        alone = rung.weights is None
        return cls(
            epochs,
            (PAPER_RATE if alone else JOINT_RATE) if rate is None else rate,
            mean or ("arithmetic" if alone else "geometric"),
            every,
        )


@dataclass
class _Alignment:
    """The alignment of one policy."""

    job: Job
    rung: Policy
    pace: _Pace
    samples: Sequence[Mapping[str, Any]]
    learned_on: int
    seed: int
    teachers: dict[tuple[int, int], Tensor]  # where each lesson's teacher ended: the same for all rungs
    calls: int = 0
    levels: Tensor | None = None  # the teacher's, where they are not the policy's steps

    def run(self, journal: Journal | None, watch: Callable[[Update], None] | None) -> Policy:
        """Align, and measure what it was worth."""
        from budcache.refine import Learned
        from budcache.refine import align as by_gradient

        rung, pace, before = self.rung, self.pace, Candidate.of(self.rung)
        known, self.calls = ([], 0) if journal is None else _known(journal, rung.budget)
        self.levels = self.job.finer_sigmas(self.samples[0])
        self.calls += self.levels is not None  # to open the pipeline costs a call

        def kept(update: Update) -> None:
            if journal is not None:
                calls = self.calls + judge.calls
                journal.write({"budget": rung.budget, "calls": calls, **asdict(update)})
            if watch is not None:
                watch(update)

        def held_out(learned: Learned) -> float:
            finals = _candidate(rung, learned).finals(judge.calibration)
            return (judge.calibration.loss if pace.mean == "arithmetic" else judge.calibration.typical_loss)(finals)

        if watch is not None:
            for update in known:
                watch(update)  # whoever draws the curve wants all of it
        with self.job.judge(self.samples[self.learned_on :], self.seed + self.learned_on) as judge:
            reference = tuple(judge.calibration.runs[0].sigmas.tolist())
            start = Learned(rung.sigmas or reference, rung.weights)
            passes = itertools.product(range(pace.epochs), range(self.learned_on))
            lessons = [partial(self._lesson, number, epoch) for epoch, number in passes]
            how_fast: Any = {"rate": pace.rate, "mean": pace.mean, "every": pace.every}
            aligned = by_gradient(start, rung.mask, lessons, held_out, known=known, watch=kept, **how_fast)
            found = before if aligned.best == start else _candidate(rung, aligned.best)
            quality = judge.quality(before), judge.quality(found)
            self.calls += judge.calls
        how = "align" if rung.weights is None else "align, joint"
        if found == before:
            how += ", kept as it was"
        return refined(self.job.pipe, rung, found, how, len(self.samples), self.calls, quality, self.job.teacher_steps)

    @contextmanager
    def _lesson(self, number: int, epoch: int) -> Iterator[Lesson]:
        """One sample's run, held open with gradients, and where its teacher ends."""
        from budcache.numerics.rollout import rollout
        from budcache.pipeline import PipelineModel
        from budcache.refine import Lesson

        job, sample = self.job, seeded(self.samples[number], self.seed + number + epoch * len(self.samples))
        with PipelineModel(job.pipe, steps=job.steps, reuse=job.reuse, grad=True, **sample) as run:
            if (epoch, number) not in self.teachers:
                levels = run.sigmas if self.levels is None else self.levels
                end = rollout(run, run.noise, levels, Mask.full(len(levels) - 1), run.solver(self.levels))
                self.teachers[epoch, number] = end
            teacher = self.teachers[epoch, number]
            yield Lesson(run, teacher, partial(self._decoded, number) if job.objective == "pixel" else None)
            self.calls += run.calls * len(run.noise)

    def _decoded(self, number: int, x: Tensor) -> Tensor:
        import torch

        from budcache.pipeline import decode

        self.calls += len(x)
        pictures = decode(self.job.pipe, x, [self.samples[number]], steps=self.job.steps)
        return torch.stack([torch.as_tensor(picture) for picture in pictures])


def _candidate(rung: Policy, learned: Learned) -> Candidate:
    return Candidate(rung.mask, learned.weights, learned.sigmas)


def _known(journal: Journal, budget: int) -> tuple[list[Update], int]:
    """The updates that earlier runs have written down for a budget, and the sample-calls that they spent."""
    updates, calls = [], 0
    for entry in journal.entries:
        try:
            if entry["budget"] == budget:
                updates.append(_update(entry))
                calls = int(entry["calls"])
        except (ValueError, TypeError, KeyError):
            raise journal.spoilt(entry) from None
    return updates, calls


def _update(entry: Mapping[str, Any]) -> Update:
    """An update as it was written into the ledger."""
    from budcache.refine import Update

    mean, square = entry["moments"]
    return Update(
        number=entry["number"],
        loss=entry["loss"],
        parameters=tuple(entry["parameters"]),
        moments=(tuple(mean), tuple(square)),
        held_out=entry["held_out"],
        start=entry["start"],
    )


def _identity(
    pipe: Any, ladder: Ladder, samples: Sequence[Mapping[str, Any]], learned_on: int, teacher_steps: int | None
) -> dict[str, Any]:
    """What the updates in a ledger depend on."""
    from budcache.pipeline import describe

    origin = describe(pipe, prompts_hash=digest(samples), teacher_steps=teacher_steps, **settings_of(samples[0]))
    return origin.model_dump(mode="json", exclude={"versions"}) | {
        "budgets": list(ladder.budgets),
        "policies": [rung.model_dump(mode="json", include={"mask", "reuse", "weights", "sigmas"}) for rung in ladder],
        "samples learned on": learned_on,
    }
