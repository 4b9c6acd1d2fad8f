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
from telling import Claim, Table, of_all, told, with_error

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
        means = {pair: float(np.mean(judge.ratios(policy))) for pair, policy in found.items()}
        rows += [[f"{budget} calls", pair, str(p.mask), with_error(judge.ratios(p), 2)] for pair, p in found.items()]
        spread = np.std(list(means.values()), ddof=1)
        best, worst = (found[each(means, key=lambda pair: means[pair])] for each in (max, min))
        apart = judge.lead(best, worst)
        ends[f"{budget} calls"] = of_all([apart])
        numbers.append(f"{budget} calls: {np.mean(list(means.values())):.2f} dB, standard deviation {spread:.2f} dB")
        numbers[-1] += f", from the worst to the best {told(apart, 2)} dB"
    title = f"The published search on {len(pairs)} pairs of prompts"
    table = Table(title, ["budget", "pair", "computed steps", "PSNR ± error"], rows)
    text = "The best pair of prompts is better than the worst by more than the measured prompts' chance"
    lab.report([table], [Claim("ours", text, ends, "; ".join(numbers))], [OTHER_SEEDS], learned=0, tuned=0)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=5, help="of prompts to search on")


if __name__ == "__main__":
    main()
