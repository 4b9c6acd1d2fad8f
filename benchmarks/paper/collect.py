"""Write `docs/results.md` from the results that the experiments have kept."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telling import Claim, Table

# In the paper's order: the script, and what a reader looks for.
EXPERIMENTS = {
    "main_table": "Every method at equal calls (Table 1)",
    "video_table": "Videos (Table 2)",
    "transfer": "Other solvers, sizes and guidance (Tables 3 and 11)",
    "low_budget": "Very few calls, and alignment (Tables 4 and 10)",
    "prompt_set": "Another set of prompts (Table 5)",
    "few_steps": "A run that is short already (Table 6)",
    "model_size": "From a small model to a large one (Table 7)",
    "video_settings": "Videos at other guidance scales, lengths and sizes",
    "intensity": "How hard to search (Tables 8 and 9)",
    "convergence": "Convergence from two starts (Figure 5)",
    "steps": "How many steps to spread the calls over (Figure 7)",
}
INTRODUCTION = """# The paper's experiments in small

Written by `benchmarks/paper/collect.py` from what the scripts beside it have measured; nothing here is typed in.
[Its README](../benchmarks/paper/README.md) says how to run them, also on real models.

"Published search" is the method of the paper as its authors' code has it: two prompts, annealing, residual reuse.
Every other method has all its settings chosen on the prompts that ours learns on and is measured at equal calls.
"budcache" is ours: paths, fitted and aligned. Columns that begin with "paper" are what the paper prints, nearly all
of it for FLUX.1-dev; they are there to compare orders and distances, not values. A claim is judged by the numbers of
its table alone: it holds where it is so in every case that was looked at. Behind a mean or a difference stands its
standard error over the prompts, which are few; a lead within two standard errors, prompt by prompt, is undecided.
"call-eq." counts probes and partial passes by their share of the network's operations. Seconds are those of the
denoising loop on the machine at hand; a speed-up is printed where pairs of runs told it to 5 %.
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/paper"), help="where the experiments have kept theirs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "docs" / "results.md")
    parser.add_argument("--quick", action="store_true", help="take smoke runs as well, whose numbers mean nothing")
    args = parser.parse_args(argv)
    found: dict[str, dict[str, Any]] = {}
    for name in EXPERIMENTS:
        file = args.folder / name / "result.json"
        result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        if result and (args.quick or not result["quick"]):
            found[name] = result
    args.out.parent.mkdir(parents=True, exist_ok=True)
    parts = [INTRODUCTION, overview(found)]
    for name, title in EXPERIMENTS.items():
        parts.append(f"## {title}\n")
        parts.append(chapter(found[name]) if name in found else f"Not run yet: `python benchmarks/paper/{name}.py`.\n")
        for figure in found.get(name, {}).get("figures", ()):
            target = args.out.parent / "images" / f"paper-{figure}"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(args.folder / name / figure, target)
            parts.append(f"![{title}](images/{target.name})\n")
    args.out.write_text("\n".join(parts), encoding="utf-8")
    print(f"{args.out}: {len(found)} of {len(EXPERIMENTS)} experiments")


def overview(found: dict[str, dict[str, Any]]) -> str:
    """How many claims hold, and in full those that do not."""
    claims = {name: [made(claim) for claim in result["claims"]] for name, result in found.items()}
    if not claims:
        return "No experiment has been run yet.\n"
    rows = [[EXPERIMENTS[name], *map(str, counts(those))] for name, those in claims.items()]
    columns = ["experiment", "hold", "hold in some cases", "do not hold", "undecided", "not tested"]
    wrong = [claim for those in claims.values() for claim in those if not holds(claim)]
    lines = [Table("Claims of the paper and our own", columns, rows).markdown(), ""]
    if wrong:
        said = "What is said but is not so here, or not always, or is undecided, or could not be tested:"
        lines += [said, "", *map(line, wrong), ""]
    else:
        lines += ["All that is said is so here as well.", ""]
    return "\n".join(lines)


def chapter(result: dict[str, Any]) -> str:
    """One experiment: how, tables, claims."""
    prompts, call = result["prompts"], "".join(f", {name} {value:g}" for name, value in result["call"].items())
    how = f"{result['about']} Measured on {result['model']}{call}, {prompts['measured on']} prompts per case."
    lines = ["**A smoke run: its numbers mean nothing.**", ""] if result["quick"] else []
    lines += [how, ""]
    for table in result["tables"]:
        lines += [Table(**table).markdown(), ""]
    lines += [f"- {note}" for note in result["notes"]]
    lines += [line(made(claim)) for claim in result["claims"]]
    return "\n".join([*lines, ""])


def made(data: dict[str, Any]) -> Claim:
    return Claim(**{name: value for name, value in data.items() if name != "verdict"})


def holds(claim: Claim) -> bool:
    return bool(claim.cases) and all(claim.cases.values())


def counts(claims: list[Claim]) -> tuple[int, int, int, int, int]:
    """How many hold, hold in part, do not hold, are undecided, were not tested."""
    found = [set(claim.cases.values()) for claim in claims]
    whole, nowhere, unsure = (found.count({told}) for told in (True, False, None))
    untested = found.count(set())
    return whole, len(claims) - whole - nowhere - unsure - untested, nowhere, unsure, untested


def line(claim: Claim) -> str:
    """A claim as an item of a list, its verdict standing out."""
    return f"- {claim.text} ({claim.source}): **{claim.verdict}**{'; ' * bool(claim.found)}{claim.found}."


if __name__ == "__main__":
    main()
