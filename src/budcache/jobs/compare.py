"""`budcache.compare`: methods side by side on one pipeline, at the same number of model calls."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.comparison.config import CompareConfig, prompt_of
from budcache.comparison.entry import FULL
from budcache.comparison.folder import Folder
from budcache.comparison.measuring import measure_all
from budcache.comparison.methods import usual
from budcache.comparison.planning import EVALUATION_SEED, MEASURING
from budcache.comparison.preparing import Preparation
from budcache.comparison.result import Comparison, Conditions
from budcache.comparison.settings import Settings
from budcache.comparison.showing import show
from budcache.errors import BudcacheError, BudcacheWarning, SearchError
from budcache.events import EntryDone, Event, Watch
from budcache.jobs.config import known_options
from budcache.jobs.meter import Meter
from budcache.jobs.setup import Elsewhere
from budcache.jobs.watching import watching
from budcache.metrics import Metric, metric
from budcache.metrics import usual as usual_metrics
from budcache.options import one_or_several, several_names, whole
from budcache.policy import Ladder
from budcache.samples.samples import digest, settings_of_all, take_samples
from budcache.wording import quote, several

if TYPE_CHECKING:
    from budcache.aggregate import Care
    from budcache.policy import Origin
    from budcache.workers import Workers
    from budcache.workers.team import Team

__all__ = ["compare"]


@known_options
def compare(
    pipe: Any,
    *,
    steps: int,
    budgets: int | Iterable[int],
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    calibration: Sequence[str] = (),
    calibration_samples: Sequence[Mapping[str, Any]] = (),
    folder: str | os.PathLike[str],
    methods: Sequence[str] | None = None,
    metrics: Sequence[str] | None = None,
    policies: Mapping[str, Ladder] | None = None,
    seed: int = 0,
    batch: int = 1,
    call: Mapping[str, Any] | None = None,
    settings: str | os.PathLike[str] | None = None,
    timed: Sequence[str] | None = None,
    care: Care = "typical",
    fps: int = 16,
    grow: bool = False,
    workers: Workers | Team | None = None,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare methods on a pipeline at the same budgets, and write a page, a table and all numbers into a folder.

    Every method has all its settings chosen on the calibration samples, by quality at the budget. Samples are then
    drawn one at a time, measured, and shown. Where a threshold misses the budget on them, a setting on the other side
    of it is drawn as well, and the method is judged by what lies in between.

    The same call goes on with what its folder holds: killed, it loses at most the method that it was drawing, or the
    times of the four that it was timing; another metric draws nothing again; another method or budget draws and
    measures only what is new.

    Args:
        pipe: any diffusers pipeline; it is left as it is.
        steps: K of the full run, which the others are measured against.
        budgets: model calls per sample to compare at.
        prompts: what to measure on; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample: images to start from, for example.
            Sample i is drawn from noise of seed + 10 000 + i, unless it brings a generator or latents.
        calibration: other prompts, to search, fit and tune on; or
        calibration_samples: the same as sets of keyword arguments.
        folder: where everything is kept and written.
        methods: names from `budcache.comparison.methods.METHODS`; None is all that are installed, without the slow
            published search. The full run always takes part. A method that cannot serve this pipeline is left out,
            with its reason.
        metrics: names from `budcache.metrics.METRICS`; None is PSNR and SSIM, of videos the worst frame and the
            steadiness as well.
        policies: ladders to compare as well, by a name of your choice; one called "budcache", "budcache-plain" or
            "authors" is taken instead of a search, and other methods' names are refused.
        seed: of the searches.
        batch: samples at once while searching and tuning; drawing is always one at a time.
        call: keyword arguments of the pipeline that all samples share: sizes, guidance.
        settings: a file of other methods' settings, such as the `settings.json` that a comparison leaves in its folder;
            what is in there is not chosen again.
        timed: the methods whose speed is measured, in pairs with full runs; None is all of them.
        care: what our searches and the choice of others' settings go by, as in `search`: "typical" errors, or the
            "worst" ones, for a comparison of bad tails. It changes nothing for LeMiCa, for the published search and
            where there is nothing to choose.
        fps: frames a second at which videos are shown.
        grow: measure, and write the page anew, whenever a method is finished at a budget, not only at the end.
        workers: who holds the runs of our searches, as in `search`; `load` says how they get the same pipeline. Or
            workers that have loaded it already (`Workers.started`).
            Drawing, timing and other methods' calibration stay in this process.
        watch: told typed events (`budcache.events`): what it will cost, how far it is, what is finished.
        progress: whether to show a bar; None does so in a terminal or a notebook.

    Returns:
        The comparison, as in the folder's `comparison.json`.
    """
    from budcache.pipeline.parts import without_bars

    shared, given = dict(call or {}), dict(policies or {})
    methods, metrics, timed = (None if each is None else several_names(each) for each in (methods, metrics, timed))
    config = CompareConfig(
        steps=whole("steps", steps),
        budgets=one_or_several(budgets),
        samples=tuple(take_samples(prompts, samples, shared)) if prompts or samples else (),
        calibration=tuple(take_samples(calibration, calibration_samples, shared))
        if calibration or calibration_samples
        else (),
        folder=Path(folder),
        methods=tuple(dict.fromkeys([*(usual() if methods is None else methods), *given])),
        metrics=tuple(dict.fromkeys(() if metrics is None else metrics)),
        policies=given,
        seed=seed,
        batch=whole("batch", batch),
        settings=None if settings is None else Settings.load(settings),
        timed=None if timed is None else tuple(timed),
        fps=whole("fps", fps),
        care=care,
    )
    config.check_pipeline(pipe)
    if workers is not None and not isinstance(workers, Elsewhere) and workers.load is None:
        raise SearchError("workers load the pipeline themselves. Say what: Workers(load=...), a name or a function.")
    if metrics is None:
        config = replace(config, metrics=usual_metrics(config.makes_videos(pipe)))
    _warn_of_shared_prompts(config)
    judges = _judges(pipe, config.metrics)
    config = replace(config, metrics=tuple(judge.name for judge in judges))
    conditions = _conditions(pipe, config)
    if config.settings is not None:
        config.settings.check(config.steps, conditions.origin, care)
    with watching(watch, progress) as everybody, without_bars(pipe):
        _in_stages(pipe, config, conditions, judges, workers, everybody, grow)
    return show(config.folder)


def _in_stages(
    pipe: Any,
    config: CompareConfig,
    conditions: Conditions,
    judges: Sequence[Metric],
    workers: Workers | Team | None,
    watch: Watch,
    grow: bool,
) -> None:
    """Draw, time and measure, into the folder."""
    from budcache.comparison.clocking import TIMING, clock
    from budcache.comparison.drawing import Drawing, draw

    with Folder(config.folder, _identity(conditions, config)) as kept:
        meter = Meter("compare", watch)

        def shown(event: Event) -> None:
            watch(event)
            if isinstance(event, EntryDone) and not event.kept and event.method != FULL:
                measure_all(kept, judges, meter)
                show(config.folder)

        if grow:
            meter.watch = shown
        kept.begin(conditions, config.methods, config.metrics)
        first = config.seed + EVALUATION_SEED
        drawing = Drawing(pipe, config.samples, first, config.steps, kept, meter, config.timed)
        preparation = Preparation(
            pipe,
            config.steps,
            config.budgets,
            config.calibration,
            kept.path,
            config.policies,
            config.seed,
            config.batch,
            meter,
            config.settings,
            workers,
            care=config.care,
        )
        with closing(preparation):
            draw(drawing, preparation, config.methods, config.budgets)
            meter.phase(TIMING)
            clock(drawing, preparation)
        meter.phase(MEASURING)
        measure_all(kept, judges, meter)


def _judges(pipe: Any, names: Sequence[str]) -> list[Metric]:
    """The metrics that can be measured here; of one that needs weights which are not here one sentence is said.

    That is before the work, not after it. Where nothing would be left to measure, it is an error.
    """
    found, missing = list[Metric](), list[BudcacheError]()
    for name in names:
        judge = metric(name, str(pipe.device))
        try:
            judge.prepare()
            found.append(judge)
        except BudcacheError as error:
            missing.append(error)
    if missing and not found:
        raise missing[0]
    for absent in missing:
        warnings.warn(f"{absent} It is left out.", BudcacheWarning, stacklevel=5)
    return found


def _warn_of_shared_prompts(config: CompareConfig) -> None:
    learned = {text for sample in config.calibration if (text := prompt_of(sample))}
    if both := learned & {text for sample in config.samples if (text := prompt_of(sample))}:
        warnings.warn(
            f"{several(len(both), 'prompt')} {'is' if len(both) == 1 else 'are'} used both to calibrate and to "
            f"measure, such as {quote(min(both))}; "
            "what is measured on them is optimistic.",
            BudcacheWarning,
            stacklevel=4,  # whoever called `compare`
        )
    if config.settings is None:
        return
    if (few := config.settings.origin.get("prompts")) is not None and few < len(config.calibration):
        warnings.warn(
            f"the settings of other methods were chosen on {several(few, 'prompt')}, and this comparison has "
            f"{len(config.calibration)} to learn on. Leave the settings out, and they are chosen on as many.",
            BudcacheWarning,
            stacklevel=4,
        )
    if config.settings.origin.get("prompts_hash") == digest(config.samples):
        warnings.warn(
            "the settings of other methods were chosen on the prompts that are measured on; what is measured of them "
            "is optimistic.",
            BudcacheWarning,
            stacklevel=4,
        )


def _conditions(pipe: Any, config: CompareConfig) -> Conditions:
    """On what, and how, it is compared."""
    import torch

    from budcache.pipeline.parts import device_of

    device = device_of(pipe)
    own_noise = any(sample.get(name) is not None for sample in config.samples for name in ("generator", "latents"))
    return Conditions(
        origin=_origin(pipe, config),
        steps=config.steps,
        budgets=config.budgets,
        prompts=config.titles,
        seed=None if own_noise else config.seed + EVALUATION_SEED,
        calibration=len(config.calibration),
        policies=tuple(config.policies),
        fps=config.fps if config.makes_videos(pipe) else None,
        care=config.care,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        threads=torch.get_num_threads(),
        dtype=str(getattr(pipe, "dtype", "")).removeprefix("torch."),
    )


def _origin(pipe: Any, config: CompareConfig) -> Origin:
    from budcache.pipeline import describe
    from budcache.pipeline.experts import switch_of

    # What differs from sample to sample has no place among the facts of all of them.
    common = {name: value for name, value in settings_of_all(config.samples).items() if name != "ranges"}
    count, hashed = len(config.samples), digest(config.samples)
    facts = {"prompts": count, "prompts_hash": hashed, "switch": switch_of(pipe, config.steps)}
    return describe(pipe, **facts, seed=config.seed, **common)


def _identity(conditions: Conditions, config: CompareConfig) -> dict[str, Any]:
    """What the pictures depend on; not the metrics, which are computed from them."""
    return conditions.origin.model_dump(mode="json", exclude={"versions"}) | {
        "calibration prompts": digest(config.calibration),
        "steps": conditions.steps,
        "dtype": conditions.dtype,
        "device": conditions.device,
        "batch": config.batch,
        "care": config.care,
    }
