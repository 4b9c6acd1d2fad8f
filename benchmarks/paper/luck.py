"""What a published search owes to the two prompts that it is given: the same search on other pairs of them.

The errors in the other tables are over the prompts that are measured on. A published search is one run on one pair, and
how much another pair would have changed is in none of them; it is measured here.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from common import Lab
from judging import OTHER_SEEDS
from telling import Claim, Table, of_all, paired, told, with_error

from budcache import Policy


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("luck", __doc__ or "", argv, budgets=((8, 9, 10), (3,)), evaluation=64, more=options)
    judge, count = lab.judge(), 2 if lab.quick else lab.args.pairs
    pairs = [lab.calibration[2 * n : 2 * n + 2] for n in range(count)]
    rows, ends, numbers = list[list[object]](), dict[str, bool | None](), list[str]()
    for budget in lab.budgets:
        found = {
            ", ".join(pair): Policy(
                mask=lab.published(budget, prompts=pair, name=f"authors-pair-{n}").ladder[budget].mask, reuse="residual"
            )
            for n, pair in enumerate(pairs)
        }
        ratios = {pair: judge.ratios(policy) for pair, policy in found.items()}
        rows += [[f"{budget} calls", pair, str(p.mask), with_error(ratios[pair], 2)] for pair, p in found.items()]
        means = [float(np.mean(each)) for each in ratios.values()]
        # Which pair is the best and which the worst is told by half of the prompts, and how far apart by the others.
        ranked = sorted(ratios.values(), key=lambda each: float(np.mean(each[::2])))
        best, worst = (
            (each[1::2] or each) for each in (ranked[-1], ranked[0])
        )  # of a single prompt there are no halves
        apart = paired(best, worst)
        ends[f"{budget} calls"] = of_all([apart])
        numbers.append(f"{budget} calls: {np.mean(means):.2f} dB, standard deviation {np.std(means, ddof=1):.2f} dB")
        numbers[-1] += f", from the worst to the best {told(apart, 2)} dB"
    title = f"The published search on {len(pairs)} pairs of prompts"
    table = Table(title, ["budget", "pair", "computed steps", "PSNR ± error"], rows)
    text = "The pair of prompts that is best on half of the others is better than the worst one on the other half"
    lab.report([table], [Claim("ours", text, ends, "; ".join(numbers))], [OTHER_SEEDS], learned=0, tuned=0)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=5, help="of prompts to search on")


if __name__ == "__main__":
    main()
