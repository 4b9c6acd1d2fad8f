"""A policy searched on a small model and used on a larger one of its family.

The paper searches on Wan2.1-T2V-1.3B and serves Wan2.1-T2V-14B: `--model` is the small one, `--target` the large one.
Without a target the large one is `--model` itself, and the small one is the same with its last block left out.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from typing import Any

import torch
from common import Lab
from published import MODEL_SIZE, MODEL_SIZE_SOURCE
from telling import Case, beats, left_out, side_by_side

from budcache import Ladder

WHAT = {
    "authors": "The published search's mask",
    "budcache-plain": "budcache's mask",
    "budcache": "budcache's mask with its blends",
}
BLOCKS = ("single_transformer_blocks", "blocks", "transformer_blocks", "layers")


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("model_size", __doc__ or "", argv, more=options)
    budget, target = lab.budgets[0], lab.args.target
    small, large = (lab.pipe, lab.load(target)) if target else (smaller(lab.pipe), lab.pipe)
    name = "small" if target is None else "model"
    policies: dict[str, Ladder] = {
        "authors": lab.published(budget, pipe=small, name=f"authors-{name}").ladder,
        "budcache-plain": lab.ours(fit=False, budgets=[budget], pipe=small, name=f"ours-{name}").ladder,
        "budcache": lab.ours(budgets=[budget], pipe=small, name=f"ours-{name}").ladder,
    }
    if target is None:  # here the large model is small enough to be searched on as well
        policies["policy:published search on the large model"] = lab.published(budget).ladder
        policies["policy:budcache on the large model"] = lab.ours().ladder
    found = lab.compare(f"on {target or 'the whole model'}", [budget], ["uniform", "teacache"], policies, pipe=large)
    cases: dict[str, Case] = {"large model": (found, budget)}
    claims = [
        beats(
            cases, who, ["teacache"], "Table 7", f"{what} of the small model serves the large one better than TeaCache"
        )
        for who, what in WHAT.items()
    ]
    title = f"A policy of {budget} calls from a smaller model; beside it {MODEL_SIZE_SOURCE}"
    made = dict.fromkeys(WHAT, "carried over from the small model") | {"teacache": "tuned on the large model"}
    table = side_by_side(title, cases, {"large model": MODEL_SIZE}, head="on", made=made)
    lab.report([table], claims, left_out([found]))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", help="the large model: a folder or a hub id")


def smaller(pipe: Any) -> Any:
    """The same pipeline without the last block of its transformer."""
    twin = copy.copy(pipe)
    twin.transformer = copy.deepcopy(pipe.transformer)
    name = next((name for name in BLOCKS if len(getattr(twin.transformer, name, ())) > 1), None)
    if name is None:
        raise SystemExit("this model has no block to leave out. Give a larger one with --target.")
    setattr(twin.transformer, name, torch.nn.ModuleList(list(getattr(twin.transformer, name))[:-1]))
    return twin


if __name__ == "__main__":
    main()
