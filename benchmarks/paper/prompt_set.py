"""Policies searched on one set of prompts and measured on others.

The paper carries a policy over to GenEval's prompts. Here the search sees animals, plants and food only, and is
measured on those, on all other things, and on these in GenEval's words. With `--others FILE`, on that file instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from common import Lab
from published import PROMPT_SET, PROMPT_SET_SOURCE
from telling import WHO, beats, left_out, side_by_side

from budcache import Ladder, models
from budcache.comparison import Comparison
from budcache.samples.prompts import read_prompts

SEEN = "the kind searched on"
MADE = {
    "teacache": "tuned on all kinds",
    "authors": "carried over",
    "budcache-plain": "carried over",
    "budcache": "carried over",
}
NATURE = """
pineapple, cat face, tulip, owl, cherries, tiger face, bread, corn, grapes, whale, candy, lion face, pear, bee, popcorn,
lollipop, dolphin, evergreen tree, peach, elephant, hotdog, flamingo, cookie, blossom, fox face, mouse face,
cheese wedge, unicorn face, spider, sushi, shark, red apple, pizza, sunflower, penguin, hamburger, strawberry, octopus,
butterfly, tomato, cactus, frog, doughnut, turtle, lemon, ladybug, watermelon, panda face, mushroom, crab, green apple,
birthday cake, rose, koala, carrot, palm tree, fried egg, tropical fish, avocado, banana
"""


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("prompt_set", __doc__ or "", argv, evaluation=64, more=options)  # all that there are of a kind
    budget = lab.budgets[0]
    learned, sets = prompt_sets(lab)
    policies = {
        "authors": lab.published(budget, prompts=learned if lab.embedded else (), name="authors-set").ladder,
        "budcache-plain": lab.ours(fit=False, budgets=[budget], prompts=learned, name="ours-set").ladder,
        "budcache": lab.ours(budgets=[budget], prompts=learned, name="ours-set").ladder,
    }
    cases = {name: (measure(lab, name, prompts, policies), budget) for name, prompts in sets.items()}
    others = {name: case for name, case in cases.items() if name != SEEN}
    text = "On prompts unlike those that it was searched on, {} is better than TeaCache"
    claims = [beats(others, who, ["teacache"], "Table 5", text.format(name)) for who, name in WHO.items()]
    text = "On prompts unlike those that it was searched on, budcache is better than the published search"
    claims.append(beats(others, "budcache", ["authors"], "ours", text))
    printed = dict.fromkeys(others, PROMPT_SET)
    table = side_by_side(
        f"One policy of {budget} calls; beside it {PROMPT_SET_SOURCE}",
        cases,
        printed,
        "prompts",
        made=lambda _, method: MADE.get(method, ""),
    )
    counts = "; ".join(f"{name}: {len(prompts)}" for name, prompts in sets.items())
    notes = [f"Prompts measured on: {counts}.", *left_out(comparison for comparison, _ in cases.values())]
    lab.report([table], claims, notes, measured=0, learned=len(learned))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--others", type=Path, help="a file of prompts of another kind")


def prompt_sets(lab: Lab) -> tuple[list[str], dict[str, list[str]]]:
    """What to search on, and the sets to measure on."""
    count = len(lab.evaluation)
    if not lab.embedded:
        others = [f"a photo of {prompt}" for prompt in lab.evaluation]
        given = lab.args.others and read_prompts(lab.args.others)[:count]
        return lab.calibration, {SEEN: lab.evaluation, "another set" if given else "in other words": given or others}
    nature = {name.strip() for name in NATURE.split(",")}
    measured = models.prompts(lab.args.model, "evaluation")
    things = [prompt for prompt in measured if prompt not in nature][:count]
    learned = [prompt for prompt in models.prompts(lab.args.model, "calibration") if prompt in nature]
    return learned[: len(lab.calibration)], {
        SEEN: [prompt for prompt in measured if prompt in nature][:count],
        "other things": things,
        "other things, in GenEval's words": [f"a photo of a {prompt}" for prompt in things],
    }


def measure(lab: Lab, name: str, prompts: list[str], policies: dict[str, Ladder]) -> Comparison:
    return lab.compare(name, lab.budgets[:1], ["teacache"], policies, prompts=prompts)


if __name__ == "__main__":
    main()
