"""What the experiments share: their options, the searches that they keep, measuring and reporting."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from options import options
from published import PROMPTS
from telling import Claim, Table

import budcache
from budcache import Ladder, Origin, Policy, models
from budcache.aggregate import Care
from budcache.comparison import Comparison
from budcache.events import Event, Progress, Scored
from budcache.metrics import usual
from budcache.pipeline.adapters import adapters
from budcache.pipeline.arguments import makes_videos
from budcache.samples.prompts import read_prompts
from budcache.storage.files import write_json
from budcache.strategies import STRATEGIES, read_history

sys.path.insert(0, str(Path(__file__).parents[1]))  # the judge that all benchmarks share

from judging import Judge

# That our one search is made for, so that all experiments can share it; the second are for `--quick`.
RUNGS, VIDEO_RUNGS = ((5, 6, 7, 8, 9, 10), (2, 3, 4)), ((10, 15, 20), (2, 3))
# Options that a reader has to know of where they are not the usual ones; sizes and prompts are told anyway.
CHANGES = ("lora", "lora_scale", "steps", "budgets", "dtype", "batch", "metrics", "align", "high", "target")
CAREFUL = "policy:budcache, care for the worst"  # our search with that option
FITTED = "policy:budcache, fitted"  # our search as it is by default, not aligned
LPIPS_WEIGHTS = "checkpoints/alexnet-owt-7be5be79.pth"


@dataclass
class Kept:
    """What a search found, and what it took."""

    ladder: Ladder
    masks: int  # that were scored with plain reuse
    calls: int  # sample-calls: model calls times samples
    calls_without_tree: (
        int | None
    )  # the same masks scored one by one, each from the start; not of fits, which share less
    seconds: float
    history: list[Scored] = field(default_factory=list)


class Lab:
    """One experiment: its options, its model and prompts, and the folder in which everything is kept.

    Args:
        name: of the experiment, and of its folder.
        about: what it does.
        argv: the command line.
        steps: K where none is given; the second is for `--quick`.
        budgets: likewise.
        evaluation: prompts to measure on.
        model: what it runs on.
        rungs: budgets that our search is made for, if it is one of these; likewise.
        learn: how many prompts our search learns on.
        lora: the LoRA on an embedded model, if `--lora` does not say another.
        more: adds options.
    """

    def __init__(
        self,
        name: str,
        about: str,
        argv: Sequence[str] | None,
        *,
        steps: tuple[int, int] = (28, 8),
        budgets: tuple[Sequence[int], Sequence[int]] = ((10,), (4,)),
        evaluation: int = 16,
        model: str = "tiny-flux",
        rungs: tuple[Sequence[int], Sequence[int]] = RUNGS,
        learn: int = 32,
        lora: str | None = None,
        more: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
    ) -> None:
        parser = options(name, about, steps[0], evaluation, model, learn)
        more(parser)
        self.name, self.about, self.parser, self.args = name, about, parser, (args := parser.parse_args(argv))
        torch.set_num_threads(args.threads)
        self.quick, self.begin, self.said = args.quick, time.perf_counter(), ""
        self.steps: int = args.steps or steps[self.quick]
        self.budgets: list[int] = args.budgets or list(budgets[self.quick])
        self.rungs = rungs[self.quick]
        self.folder: Path = args.folder or Path("out") / ("paper-quick" if self.quick else "paper") / name
        self.searches = self.folder.parent / "searches"
        self.embedded = args.model in models.EMBEDDED and args.prompts is None
        if self.embedded:
            learned, measured = models.prompts(args.model, "calibration"), models.prompts(args.model, "evaluation")
        elif args.prompts is None:
            parser.error(f"{args.model} brings no prompts of its own. Give a file with --prompts.")
        else:
            measured = read_prompts(args.prompts)
            part = min(len(measured) // 3, max(args.learn, getattr(args, "align", 0)))
            learned = read_prompts(args.calibration) if args.calibration else measured[:part]
            measured = measured if args.calibration else measured[part:]
        self.learned = learned[:4] if self.quick else learned  # all that nothing is measured on
        self.calibration = self.learned[: args.learn]
        self.evaluation = measured[: args.evaluation or (2 if self.quick else evaluation)]
        if not self.evaluation or len(self.calibration) < 4:
            parser.error("there are too few prompts: 4 to learn on and 1 to measure on at least.")
        given = {"height": args.height, "width": args.width, "num_frames": args.frames}
        given["guidance_scale"] = args.guidance
        self.call = {key: value for key, value in given.items() if value is not None}
        self.lora: str | None = args.lora or (lora if args.model in models.EMBEDDED else None)
        self.pipe = self.load(args.model, self.lora)
        self.metrics = args.metrics or usual_metrics(self.pipe)

    @property
    def tuning(self) -> list[str]:
        """Prompts that the settings of other methods are chosen on."""
        return self.calibration[: 2 if self.quick else self.args.tuning]

    @property
    def changed(self) -> dict[str, Any]:
        """Options that are not the usual ones and change what is measured."""
        given = {name: value for name, value in vars(self.args).items() if value != self.parser.get_default(name)}
        return {name: str(value) for name, value in given.items() if name in CHANGES}

    def load(self, model: str, lora: str | None = None) -> Any:
        """A pipeline on the device that was asked for."""
        usual = "bfloat16" if self.args.device.startswith("cuda") else "float32"
        with_lora = {} if lora is None else {"lora": lora, "lora_scale": self.args.lora_scale}
        pipe = models.load(model, dtype=getattr(torch, self.args.dtype or usual), **with_lora).to(self.args.device)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def say(self, text: str, again: bool = True) -> None:
        """Tell whoever waits; the same thing twice only where that is news."""
        said, self.said = self.said, text
        if text == said and not again:
            return
        print(f"{time.perf_counter() - self.begin:6.0f} s  {text}", file=sys.stderr, flush=True)

    # Searches, each made once for all experiments

    def search(
        self, name: str, prompts: Sequence[str], budgets: Iterable[int], *, pipe: Any = None, **options: Any
    ) -> Kept:
        """A search, from its file if there is one; killed, it goes on from its ledger."""
        pipe = self.pipe if pipe is None else pipe
        options = {"steps": self.steps, "batch": min(self.args.batch, len(prompts)), "call": self.call, **options}
        given = {**options, "budgets": sorted(set(budgets))}
        given |= {} if "samples" in given else {"prompts": list(prompts)}
        refine = given.pop("refine", None)
        base = name.removesuffix("-plain").removesuffix("-fit")
        facts = [self.args.model, type(pipe.scheduler).__name__, str(pipe.dtype), base, given, *adapters(pipe)]
        file = self.searches / f"{name}-{short(facts)}.json"
        if file.exists():
            return _read(file)
        self.say(f"searching: {name}")
        self.searches.mkdir(parents=True, exist_ok=True)
        # With plain, fitted and aligned reuse the same masks are scored first, so they share a ledger.
        ledger = self.searches / f"{base}-{short(facts)}.ledger.jsonl"
        ladder = budcache.search(pipe, **given, refine=refine, ledger=ledger, progress=False)
        how = ladder.searched
        assert how is not None  # it comes straight from a search
        masks = {step.mask for step in read_history(ledger) if not step.phase.endswith(", fitted")}
        kept = Kept(
            ladder=ladder,
            masks=len(masks),
            calls=how.calls,
            calls_without_tree=None
            if refine != "none"
            else len(prompts) * (given["steps"] + sum(mask.budget for mask in masks)),
            seconds=how.seconds,
            history=list(how.history),
        )
        _write(file, kept)
        return kept

    def published(
        self, budget: int, preset: str = "r2-sa100", prompts: Sequence[str] = (), count: int = 2, **options: Any
    ) -> Kept:
        """The authors' search as they published it: two prompts, one budget, residual reuse, their moves."""
        two = list(prompts[:count]) or (self.calibration[:count] if self.embedded or count > 2 else list(PROMPTS))
        if type(self.pipe).__name__.startswith("Wan"):
            preset, options = "wan", {"objective": "pixel", **options}
        return self.annealed(f"authors-{preset}", budget, two, **{"reuse": "residual", **options})

    def annealed(self, strategy: str, budget: int, prompts: Sequence[str] = (), **options: Any) -> Kept:
        """A search by one of the annealing strategies, without selection or fit; `rounds` of climbing, if given."""
        plan: Any = STRATEGIES[strategy]
        rounds = options.pop("rounds", None)
        if self.quick:
            plan = replace(plan, iterations=3, **({"rounds": 1} if hasattr(plan, "rounds") else {}))
        elif rounds is not None:
            plan = replace(plan, rounds=rounds)
        two = list(prompts) or (self.calibration[:2] if self.embedded else list(PROMPTS))
        name = f"{options.pop('name', strategy)}-{budget}"
        return self.search(name, two, [budget], **{"strategy": plan, "selection": 0, "refine": "none", **options})

    def ours(
        self, *, fit: bool = True, budgets: Iterable[int] = (), prompts: Sequence[str] = (), **options: Any
    ) -> Kept:
        """Our search: every budget at once, on more prompts, a quarter of them to choose by; a fit is also aligned."""
        wanted = set(budgets) or self._wanted
        if fit:
            self.ours(fit=False, budgets=wanted, prompts=prompts, **options)
        name = options.pop("name", "ours") + ("" if fit else "-plain")
        return self.search(
            name, prompts or self.calibration, wanted, **{"refine": "full" if fit else "none", **options}
        )

    def fitted(self) -> Kept:
        """Our search as it is by default: fitted, and not aligned. Its ledger is its own, so that its cost is, too."""
        return self.search("ours-fitted", self.calibration, self._wanted, refine="fit")

    @property
    def _wanted(self) -> set[int]:
        """The budgets that our search is made for: those that experiments share, if they are all that is asked for."""
        shared = {rung for rung in self.rungs if rung < self.steps}
        return shared if shared.issuperset(self.budgets) else set(self.budgets)

    def careful(self) -> Kept:
        """The same with care for the worst samples."""
        return self.ours(name="ours-careful", care="worst")

    def policies(self, budgets: Sequence[int] = ()) -> dict[str, Ladder]:
        """What most experiments compare: the published search, ours with plain reuse, and ours."""
        wanted = budgets or self.budgets
        return {
            "authors": Ladder.of([self.published(budget).ladder[budget] for budget in wanted]),
            "budcache-plain": self.ours(fit=False).ladder,
            "budcache": self.ours().ladder,
        }

    def refined(self, name: str, policy: Policy, refine: Callable[[Ladder, Path], Ladder]) -> tuple[Policy, float]:
        """A policy that has been fitted or aligned, and the seconds that it took; made once, with a ledger at hand."""
        file = self.folder / f"{slug(name)}-{short([self.args.model, self.call, policy.model_dump(mode='json')])}.json"
        if not file.exists():
            self.say(f"refining: {name}")
            begin = time.perf_counter()
            file.parent.mkdir(parents=True, exist_ok=True)
            found = refine(Ladder.of([policy]), file.with_suffix(".ledger.jsonl")).rungs[0]
            seconds = time.perf_counter() - begin
            write_json(file, {"policy": found.model_dump(mode="json", exclude_none=True), "seconds": seconds})
        data = json.loads(file.read_text(encoding="utf-8"))
        return Policy.model_validate(data["policy"]), data["seconds"]

    # Measuring

    def place(
        self, name: str, prompts: Sequence[str], pipe: Any, call: Mapping[str, Any], care: Care = "typical"
    ) -> str:
        """The name of a comparison's folder, which is another one for whatever it depends on."""
        facts = [self.args.model, type(pipe.scheduler).__name__, str(pipe.dtype), self.args.device, self.steps]
        facts += [list(prompts), self.tuning, dict(call), *adapters(pipe), *[care] * (care != "typical")]
        return f"{slug(name)}-{short(facts)}"

    def compare(
        self,
        name: str,
        budgets: Sequence[int],
        methods: Sequence[str],
        policies: Mapping[str, Ladder],
        *,
        pipe: Any = None,
        prompts: Sequence[str] = (),
        chosen: Path | None = None,
        care: Care = "typical",
        **call: Any,
    ) -> Comparison:
        """`budcache.compare` in a folder of its own; policies are used wherever they were made.

        `chosen` is a file of settings of other methods that need not be chosen again; where they are, `care` is what
        that goes by.
        """
        pipe, given = self.pipe if pipe is None else pipe, {**self.call, **call}
        # Without where they were made, they are used wherever that is asked; what they were made on is still told.
        bare = {
            title: Ladder.of([rung.model_copy(update={"origin": _counts(rung, pipe)}) for rung in ladder])
            for title, ladder in policies.items()
        }
        tuning = self.tuning
        measured = list(prompts or self.evaluation)
        folder = self.folder / self.place(name, measured, pipe, given, care)
        self.say(f"comparing: {name}")

        def watch(event: Event) -> None:
            if isinstance(event, Progress):
                self.say(f"  {event.phase}", again=False)

        return budcache.compare(
            pipe,
            steps=self.steps,
            budgets=budgets,
            prompts=measured,
            calibration=tuning,
            folder=folder,
            methods=methods,
            metrics=self.metrics,
            policies=bare,
            batch=min(self.args.batch, len(tuning)),
            call=given,
            settings=chosen,
            care=care,
            timed=self.timed({*methods, *policies}),
            watch=watch,
            progress=False,
        )

    def timed(self, methods: set[str]) -> list[str] | None:
        """Those of some methods that are to be timed; None is all."""
        if self.args.timed is None:
            return [] if self.quick else None
        return [name for name in self.args.timed if name in methods]

    def judge(self, steps: int | None = None, prompts: Sequence[str] = ()) -> Judge:
        """PSNR and SSIM to the full run of so many steps."""
        return Judge(self.pipe, list(prompts or self.evaluation), steps or self.steps, **self.call)

    # Reporting

    def report(
        self,
        tables: Sequence[Table],
        claims: Sequence[Claim],
        notes: Sequence[str] = (),
        figures: Sequence[Path] = (),
        *,
        measured: int | None = None,
        learned: int | None = None,
        tuned: int | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Print tables, claims and one JSON line, and keep it all as `result.json`, with `values` of every prompt.

        `measured`, `learned` and `tuned` are how many prompts were measured on, ours was learned on and others tuned
        on, where those are not the usual ones; 0 where nobody was, or a table or note says it.
        """
        counts = {
            "measured on": len(self.evaluation) if measured is None else measured,
            "learned on": len(self.calibration) if learned is None else learned,
            "tuned on": len(self.tuning) if tuned is None else tuned,
        }
        result = {
            "experiment": self.name,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "about": " ".join(self.about.split("\n\n")[0].split()),
            "quick": self.quick,
            "model": self.args.model if self.embedded else Path(self.args.model).name,
            "adapters": list(adapters(self.pipe)),
            "steps": self.steps,
            "budgets": self.budgets,
            "prompts": {name: count for name, count in counts.items() if count},
            "options": self.changed,
            "call": self.call,
            "versions": {"budcache": budcache.__version__, "torch": torch.__version__},
            "tables": [asdict(table) for table in tables],
            "claims": [{**asdict(claim), "verdict": claim.verdict} for claim in claims],
            "notes": list(notes),
            "figures": [figure.name for figure in figures],
            **({"values": dict(values)} if values else {}),
        }
        write_json(self.folder / "result.json", result)
        print("\n\n".join([table.text() for table in tables]), end="\n\n")
        for line in [*notes, *(claim.sentence for claim in claims)]:
            print(f"- {line}")
        print(json.dumps({name: value for name, value in result.items() if name != "values"}))
        return result


def usual_metrics(pipe: Any) -> list[str]:
    """What is usual for pictures or videos, and LPIPS where its weights have been downloaded already."""
    lpips = (Path(torch.hub.get_dir()) / LPIPS_WEIGHTS).exists()
    return [*usual(makes_videos(pipe)), *["lpips"] * lpips]


def slug(text: str) -> str:
    """A name for a file."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in text.lower()).split())


def short(facts: Any) -> str:
    """A few letters that stand for all facts; other facts, other letters."""
    return hashlib.sha256(json.dumps(facts, default=repr, sort_keys=True).encode()).hexdigest()[:8]


def _counts(policy: Policy, pipe: Any) -> Origin | None:
    """How many prompts and sample-calls a policy took, and nothing else of its origin: it is to suit this pipeline."""
    origin = policy.origin
    return None if origin is None else Origin(prompts=origin.prompts, calls=origin.calls, adapters=adapters(pipe))


def _write(file: Path, kept: Kept) -> None:
    history = [[str(each.mask), each.loss, each.phase, each.sample_calls, each.new] for each in kept.history]
    facts = {name: getattr(kept, name) for name in ("masks", "calls", "calls_without_tree", "seconds")}
    write_json(file, {"ladder": kept.ladder.model_dump(mode="json", exclude_none=True), **facts, "history": history})


def _read(file: Path) -> Kept:
    data = json.loads(file.read_text(encoding="utf-8"))
    history = [Scored(budcache.Mask.parse(mask), *rest) for mask, *rest in data.pop("history")]
    return Kept(ladder=Ladder.model_validate(data.pop("ladder")), history=history, **data)
