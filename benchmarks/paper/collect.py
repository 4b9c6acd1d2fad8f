"""Write `docs/results.md` from the results that are kept in the repository, after keeping what is newer.

`results/NAME.json` has of each experiment what the page prints, so that its chapter outlives the machine that it was
measured on, and another experiment can be added without running the others again.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reasons import UNTESTED, why
from telling import GOAL, Table, written

HERE = Path(__file__).parent

# In the paper's order: the script, and what a reader looks for.
EXPERIMENTS = {
    "main_table": "Every method at equal calls (Table 1)",
    "tails": "The bad tail, with more seeds",
    "published_masks": "From the published search to ours, one change at a time",
    "video_table": "Videos (Table 2)",
    "transfer": "Other solvers, sizes and guidance (Tables 3 and 11)",
    "low_budget": "Very few calls, and alignment (Tables 4 and 10)",
    "prompt_set": "Another set of prompts (Table 5)",
    "few_steps": "A run that is short already (Table 6)",
    "model_size": "From a small model to a large one (Table 7)",
    "video_settings": "Videos at other guidance scales, lengths and sizes",
    "intensity": "How hard to search (Tables 8 and 9)",
    "luck": "What two prompts decide",
    "convergence": "Convergence from two starts (Figure 5)",
    "steps": "How many steps to spread the calls over (Figure 7)",
}
INTRODUCTION = """# The paper's experiments in small

Written by `benchmarks/paper/collect.py` from what the scripts beside it have measured; typed in are only the
reasons (`reasons.py`).
[Its README](../benchmarks/paper/README.md) says how to run them, also on real models.

How to read it:

- **Small models.** Nothing here was run on FLUX.1-dev or Wan2.1. "Does not hold" is said of tiny-flux and tiny-wan,
  and refutes nothing that the paper says of large models.
- **Other methods** have all their settings chosen on the prompts that ours learns on, by their mean, and are measured
  at equal calls. In the tables of pictures they are chosen by the PSNR of the pictures, as our masks are, in those of
  videos by the latents. TeaCache may leave the last step out (in Table 1 that gained it 0.4 to 1.8 dB at 5 to 10
  calls), except in the tables of videos, which are older. Of those prompts LeMiCa takes four, for it needs
  many runs of each; Table 1 also has it on twelve, which cost as much as our search. L2P and ERTACache are written
  after their papers: none of their authors' code could be downloaded to check them against. "Heuristics" are the
  paper's: TeaCache, MagCache, LeMiCa, DiCache, ERTACache and TaylorSeer. Fewer steps of other solvers have their
  order, corrector, spacing of noise levels and start chosen likewise, which gained UniPC 2.4 to 4.6 dB in Table 1;
  they are judged by how near they come to the Euler run that all others imitate. The caches of diffusers and
  cache-dit, which `budcache compare` also runs, are left out.
- **Published search** is the method of the paper as its authors' code has it: two prompts (eight in a row of its
  own), annealing, two rounds of climbing (20, the authors' settings, in another), residual reuse. That scores about
  as many masks as the paper prints at 8 calls, and at 9 and 10 calls 6 and 18 % fewer ([Table
  8](#how-hard-to-search-tables-8-and-9)). It is one run; how much another pair of prompts changes is [measured
  apart](#what-two-prompts-decide) and not in its errors.
- **What ours has seen.** Nothing was ever searched, fitted or tuned on the prompts that are measured on. But how
  budcache searches (its candidates, ridges and means) was decided by figures on tiny-flux, some of them on these
  prompts; other methods had no such chance. Other seeds are in [the bad tail](#the-bad-tail-with-more-seeds), other
  things in [Table 5](#another-set-of-prompts-table-5).
- **budcache** is our search (of runs of 8 steps it tries every mask), fitted and then aligned (`--refine full`). By
  default nothing is aligned; that is the row "fitted" of Table 1. Aligning takes most of its
  sample-calls: 29,000 for all budgets, where choosing the
  settings of another method took 4,000 to 31,000 and LeMiCa's graphs 10,000 and 28,000. What each took stands behind
  Table 1.
- **"paper: ..."** columns are what the paper prints, nearly all of it for FLUX.1-dev: there to compare orders and
  distances, not values.
- **Errors** are standard errors over the prompts, which are few; a lead within two of them, prompt by prompt, is
  undecided; with fewer than 20 prompts within as many as Student's t asks for (within two in the tables of videos,
  which are older). A claim is judged by the numbers of its table alone: it holds where it is so in every
  case looked at.
- **"call-eq."** counts probes and partial passes by their share of the network's operations. Settings are chosen at
  equal calls, so DiCache may take a second block into its probe, which costs it call-equivalents and speed.
- **Speed-ups** are of the denoising loop on the machine at hand, with their 95 % interval, and printed where pairs of
  runs told them to 5 %. One that came out slightly above the limit that the calls set is printed as a bound
  ("≤2.80x"). Seconds are those of a full run divided by the speed-up. A call of tiny-flux takes 5 to 10 ms, so what
  a method does around its calls, here in Python, counts more than on a large model; "by work" is the speed-up if only
  the network's operations took time.
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/paper"), help="where experiments have left theirs")
    parser.add_argument("--kept", type=Path, default=HERE / "results", help="where the newest results are kept")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "results.md")
    parser.add_argument("--quick", action="store_true", help="take smoke runs as well, whose numbers mean nothing")
    args = parser.parse_args(argv)
    found: dict[str, dict[str, Any]] = {}
    images = args.out.parent / "images"
    images.mkdir(parents=True, exist_ok=True)
    for name in EXPERIMENTS:
        kept, new = read(args.kept / f"{name}.json"), read(args.folder / name / "result.json")
        if new and (args.quick or not new["quick"]) and (kept is None or new.get("made", "") > kept["made"]):
            kept = printed(new)
            for figure in new["figures"]:
                shutil.copyfile(args.folder / name / figure, images / f"paper-{figure}")
            if not new["quick"]:
                keep(args.kept / f"{name}.json", kept)
        if kept:
            found[name] = kept
    args.out.write_text(page(found), encoding="utf-8")
    print(f"{args.out}: {len(found)} of {len(EXPERIMENTS)} experiments")


# Keeping


def read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def printed(result: dict[str, Any]) -> dict[str, Any]:
    """A result with no more in it than is printed: numbers as they are written, verdicts without their cases."""
    tables = [
        {**table, "rows": [[written(cell) for cell in row] for row in table["rows"]]} for table in result["tables"]
    ]
    facts = ("source", "text", "verdict", "found")
    return {**result, "tables": tables, "claims": [{name: claim[name] for name in facts} for claim in result["claims"]]}


def keep(file: Path, result: dict[str, Any]) -> None:
    """One line for each row of a table, so that changes can be read."""
    text = json.dumps(result, indent=1, ensure_ascii=False)
    row = re.compile(r'\[\s+("(?:[^"\\]|\\.)*"(?:,\s+"(?:[^"\\]|\\.)*")*)\s+\]')
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(row.sub(lambda found: f"[{re.sub(chr(10) + ' +', ' ', found[1])}]", text) + "\n", encoding="utf-8")


# Telling


def page(found: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    parts = [INTRODUCTION, overview(found)]
    for name, title in EXPERIMENTS.items():
        parts.append(f"## {title}\n")
        parts.append(chapter(found[name]) if name in found else f"Not run yet: `python benchmarks/paper/{name}.py`.\n")
        parts += [f"![{title}](images/paper-{figure})\n" for figure in found.get(name, {}).get("figures", ())]
    return "\n".join(parts)


def overview(found: dict[str, dict[str, Any]]) -> str:
    """How many claims hold, and in full those that do not."""
    claims = {name: claims_of(result) for name, result in found.items()}
    if not claims:
        return "No experiment has been run yet.\n"
    rows = [[EXPERIMENTS[name], *map(str, counts(those))] for name, those in claims.items()]
    kinds = {kind: [c for those in claims.values() for c in those if whose(c) == kind] for kind in KINDS}
    whom = [[kind, *map(str, counts(those))] for kind, those in kinds.items()]
    columns = [
        "hold",
        "hold in some cases",
        "do not hold",
        "do not hold in the cases that are decided",
        "undecided",
        "not tested",
    ]
    wrong = list[str]()
    for name, those in claims.items():
        told = [line(claim, name) for claim in those if claim["verdict"] != "holds" and claim["source"] != GOAL]
        wrong += [f"**{EXPERIMENTS[name]}**", "", *told, ""] * bool(told)
    goals = [line(claim, name) for name, those in claims.items() for claim in those if claim["source"] == GOAL]
    lines = ["## What came of it", "", *["Our goals on tiny-flux, in Table 1:", "", *goals, ""] * bool(goals)]
    lines += [Table("Claims of the paper and our own", ["whose", *columns], whom).markdown(), ""]
    lines += [Table("The same by experiment", ["experiment", *columns], rows).markdown(), ""]
    if wrong:
        said = "What is said but is not so here, or not always, or is undecided, or could not be tested"
        lines += [f"<details><summary>{said}</summary>", "", *wrong, "", "</details>", ""]
    else:
        lines += ["All that is said is so here as well.", ""]
    return "\n".join(lines)


def chapter(result: dict[str, Any]) -> str:
    """One experiment: how, tables, claims."""
    prompts, call = result["prompts"], "".join(f", {name} {value:g}" for name, value in result["call"].items())
    given = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in result.get("options", {}).items())
    count = f", {prompts['measured on']} prompts per case" if "measured on" in prompts else ""
    parts = [f"Measured on {result['model']}{call}{count}"]
    parts += [f"ours learned on {prompts['learned on']} others"] if "learned on" in prompts else []
    parts += [f"other methods tuned on {prompts['tuned on']}"] if "tuned on" in prompts else []
    how = f"{result['about']} {'; '.join([*parts, *[f'with {given}'] * bool(given)])}."
    lines = ["**A smoke run: its numbers mean nothing.**", ""] if result["quick"] else []
    lines += [how, ""]
    for table in result["tables"]:
        lines += [Table(**timed(table)).markdown(), ""]
    lines += [f"- {note}" for note in result["notes"]]
    lines += [line(claim, result["experiment"]) for claim in claims_of(result)]
    return "\n".join([*lines, ""])


def claims_of(result: dict[str, Any]) -> list[dict[str, str]]:
    """An experiment's claims, and what the paper says beside them that cannot be tested here."""
    return [*result["claims"], *UNTESTED.get(result["experiment"], ())]


KINDS = ("the paper's, of its own search", "the same asked of budcache", "our own")


def whose(claim: dict[str, str]) -> str:
    """Who says so, and of what."""
    if claim["source"] in ("ours", GOAL):
        return KINDS[2]
    return KINDS["budcache" in claim["text"]]


def timed(table: dict[str, Any]) -> dict[str, Any]:
    """A table without seconds of runs that were not timed; without these columns where nobody was."""
    if not {"loop s", "speed-up"} <= set(table["columns"]):
        return table
    seconds, speed = (table["columns"].index(name) for name in ("loop s", "speed-up"))
    known = [row[speed].lstrip("≤")[:1].isdigit() for row in table["rows"]]
    if not any(known):
        left = [i for i in range(len(table["columns"])) if i not in (seconds, speed)]
        return {
            **table,
            "columns": [table["columns"][i] for i in left],
            "rows": [[row[i] for i in left] for row in table["rows"]],
        }
    rows = [[*row] for row in table["rows"]]
    for row, is_known in zip(rows, known, strict=True):
        row[seconds] = row[seconds] if is_known else "-"
    return {**table, "rows": rows}


def counts(claims: Sequence[dict[str, str]]) -> tuple[int, ...]:
    """How many hold, hold in part, do not hold, do not hold where decided, are undecided, were not tested."""
    verdicts = [claim["verdict"] for claim in claims]

    def beginning(words: str) -> int:
        return sum(verdict.startswith(words) for verdict in verdicts)

    parts = map(beginning, ("does not hold where", "undecided", "could not be tested"))
    return (verdicts.count("holds"), beginning("holds in "), verdicts.count("does not hold"), *parts)


def line(claim: dict[str, str], experiment: str) -> str:
    """A claim as an item of a list, its verdict standing out; one that does not hold with the reason."""
    found, reason = claim["found"], "" if claim["verdict"] == "holds" else why(experiment, claim["text"])
    said = f"- {claim['text']} ({claim['source']}): **{claim['verdict']}**{'; ' * bool(found)}{found}."
    return said + f" Why: {reason}." * bool(reason)


if __name__ == "__main__":
    main()
