"""What `budcache fit` and `budcache align` share: their options, the file to refine and the file that comes of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.chosen import load
from budcache.cli.common import check_model, out, say
from budcache.cli.rungs import Output, say_what_was_there
from budcache.errors import PolicyError
from budcache.jobs.refining import origin_after
from budcache.jobs.setup import about_of
from budcache.options import parse_budgets
from budcache.policy import Ladder, Origin, Policy

LadderArgument = Annotated[Path, typer.Argument(help="A policy or ladder: a file, or owner/name on the hub.")]
Model = Annotated[str | None, typer.Option(help="An embedded name, a folder or a hub id; default: the file's own.")]
LoraScale = Annotated[float | None, typer.Option(help="How strongly it works.", show_default="1")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Default: beside it, ending in .fit.json or .align.json. A ladder that is there gets the new rungs.",
    ),
]
Budgets = Annotated[str | None, typer.Option("--budgets", "--budget", "-b", help="Only these rungs: 8, or 5,6.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the first sample.")]
Selection = Annotated[int | None, typer.Option(min=1, help="Samples kept for choosing.")]
Teacher = Annotated[int | None, typer.Option(min=1, help="Steps of the teacher; default: those of the file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and stop.")]
Plot = Annotated[Path | None, typer.Option(help="Also draw what was learned, as PNG.")]


class Work:
    """What both commands do before and after: the file to refine, and the file that comes of it."""

    def __init__(
        self,
        file: Path,
        model: str | None,
        lora: str | None,
        lora_scale: float | None,
        out_path: Path | None,
        budgets: str | None,
        verb: str,
        force: bool,
        as_json: bool,
    ) -> None:
        self.single = isinstance(load(file), Policy)
        whole = Ladder.load(file)
        self.ladder = whole if budgets is None else Ladder.of([whole[budget] for budget in parse_budgets(budgets)])
        origin = self.ladder.rungs[0].origin
        found = model or (origin and origin.model)
        if not found:
            raise PolicyError(f"{file} does not say what model it is for. Name it with --model.")
        self.model: str = found
        self.lora = _lora(file, self.model, origin, lora, lora_scale)
        if self.lora != (None, 1.0):
            check_model(self.model, *self.lora)
        self.verb, self.as_json, self.begin = verb, as_json, time.perf_counter()
        beside = file.with_suffix(f".{verb}.json")  # or here, if it is the hub's
        self.out = out_path or (beside if file.exists() else Path(beside.name))
        self.into = Output(self.out, force)

    def check(self, pipe: Any, samples: list[dict[str, Any]], teacher_steps: int | None) -> None:
        """Refuse, before the work, to write into a ladder that the new rungs do not belong to."""
        here = about_of(pipe).origin
        origins = {rung.budget: origin_after(here, rung, samples, teacher_steps) for rung in self.ladder}
        rungs = [rung.model_copy(update={"origin": origins[rung.budget]}) for rung in self.ladder]
        self.into.check(Ladder.of(rungs), {"align": "alignment"}.get(self.verb, self.verb))

    def done(self, found: Ladder) -> None:
        """Save, and tell."""
        from budcache.report.text import describe

        written = self.into.write(found, single=self.single)
        seconds = time.perf_counter() - self.begin
        if self.as_json:
            gains = {rung.budget: rung.refined[-1].gain for rung in found}
            facts = {"ladder": str(self.out), "seconds": seconds, "gain": gains, "all_budgets": written.budgets}
            print(json.dumps(facts))
            return
        out.print(describe(found.rungs[0] if self.single else found))
        say(f"\n{self.out}  {seconds:.1f} s")
        say_what_was_there(found, written)


def _lora(
    file: Path, model: str, origin: Origin | None, lora: str | None, scale: float | None
) -> tuple[str | None, float]:
    """The LoRA that was asked for; else the one that a file was made with, where it comes with the model."""
    from budcache.models.loras import embedded

    made_with = origin.adapters if origin is not None else ()
    if lora is not None or not made_with:
        return lora, 1.0 if scale is None else scale
    name, _, rest = made_with[0].partition(" (")
    if len(made_with) > 1 or name not in embedded(model) or " to " in rest:
        raise PolicyError(f"{file} was made with adapters: {', '.join(made_with)}. Name the LoRA with --lora.")
    return name, float(rest.partition(" at ")[2] or 1.0) if scale is None else scale
