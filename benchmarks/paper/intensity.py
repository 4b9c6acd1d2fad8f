"""How hard to search: masks scored, sample-calls, loss and held-out quality of light and of intensive searches.

"Published" is the authors' code (residual reuse), "as printed" Algorithms 1 and 2 (output reuse, all neighbours), both
on two prompts and for one budget at a time. "ladder" and "budcache" find all budgets in one search.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import Kept, Lab
from judging import OTHER_SEEDS, Judge
from published import EFFICIENCY, INTENSITY, INTENSITY_SOURCE
from telling import Claim, Table, with_error

PRESETS = {"r1-sa20": "R1 SA20", "r2-sa100": "R2 SA100"}
NEGLIGIBLE = 0.02  # the paper calls gaps of up to 1.08 % negligible; this is twice as much


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("intensity", __doc__ or "", argv, budgets=((8, 9, 10), (3, 4)), evaluation=32)
    middle = lab.budgets[len(lab.budgets) // 2]
    found: dict[tuple[str, int], Kept] = {}
    for preset, title in PRESETS.items():
        for budget in lab.budgets:
            found[f"published {title}", budget] = lab.published(budget, preset)
        found[f"as printed {title}", middle] = lab.annealed(f"anneal-{preset}", middle)
    two, ours = (
        lab.ours(fit=False, prompts=lab.calibration[:2], selection=0, strategy="ladder", name="ladder-two"),
        lab.ours(),
    )
    for budget in lab.budgets:
        found["ladder on 2 prompts", budget] = two
        found[f"budcache on {len(lab.calibration)} prompts", budget] = ours
    judge = lab.judge()
    rows = list[list[object]]()
    for (name, budget), kept in found.items():
        preset = next((preset for preset, title in PRESETS.items() if name == f"published {title}"), "")
        printed = EFFICIENCY.get((preset, budget), (None, None))
        theirs = INTENSITY.get(preset, {}) if budget == 9 else {}
        policy = kept.ladder[budget]
        loss = policy.quality and policy.quality.calibration_loss
        # Ours has fits and an alignment beside its masks, which no tree makes cheaper.
        without = None if name.startswith("budcache") else kept.calls_without_tree
        row = [name, budget, kept.masks, kept.calls, without, kept.seconds, loss]
        row += [with_error(judge.ratios(policy, by), digits) for by, digits in (("psnr", 2), ("ssim", 4))]
        rows.append([*row, *printed, theirs.get("psnr"), theirs.get("ssim")])
    columns = ["search", "calls", "masks", "sample-calls", "without tree", "seconds", "loss"]
    columns += ["PSNR ± error", "SSIM ± error"]
    columns += ["paper: masks", "paper: seconds", "paper: PSNR", "paper: SSIM"]
    table = Table(f"Searches, light and intensive; beside it {INTENSITY_SOURCE}", columns, rows)
    claims = [*negligible(found, judge, lab.budgets), *cheaper(found, judge, lab.budgets)]
    lab.report([table], claims, [OTHER_SEEDS], tuned=0)


def negligible(found: dict[tuple[str, int], Kept], judge: Judge, budgets: list[int]) -> list[Claim]:
    """The light search is said to be as good as the intensive one; undecided where two standard errors say both."""
    cases, gaps = dict[str, bool | None](), list[str]()
    for budget in budgets:
        light, full = (found[f"published {title}", budget].ladder[budget] for title in PRESETS.values())
        for name in ("psnr", "ssim"):
            apart, whole = judge.lead(full, light, by=name), judge(light)[name]
            gap, error = apart.mean / whole, (apart.error or 0.0) / whole
            sure = abs(abs(gap) - NEGLIGIBLE) > 2 * error
            cases[f"{budget} calls by {name.upper()}"] = abs(gap) <= NEGLIGIBLE if sure else None
            gaps.append(f"{budget} calls: {name.upper()} {gap:+.2%} ± {error:.2%}")
    text = f"R1 SA20 is as good as R2 SA100, to within {NEGLIGIBLE:.0%}"
    return [Claim("Table 9", text, cases, ", ".join(gaps))]


def cheaper(found: dict[tuple[str, int], Kept], judge: Judge, budgets: list[int]) -> list[Claim]:
    """Ours: one search takes less than the published ones of the same budgets here, and what it finds is better."""
    name = next(name for name, _ in found if name.startswith("budcache"))
    published = sum(found["published R2 SA100", budget].calls for budget in budgets)
    ladder, ours = found["ladder on 2 prompts", budgets[0]], found[name, budgets[0]]
    calls = f"{ladder.calls} and {ours.calls} sample-calls against {published}"
    pairs = {b: [found[who, b].ladder[b] for who in (name, "published R2 SA100")] for b in budgets}
    ahead = {f"{b} calls": judge.lead(*pair) for b, pair in pairs.items()}
    gains = ", ".join(f"{case}: {gain.mean:+.2f} ± {gain.error or 0:.2f} dB" for case, gain in ahead.items())
    less = "One search for all budgets takes fewer sample-calls than the published ones, each on two prompts"
    cost = {"ladder on 2 prompts": ladder.calls < published, name: ours.calls < published}
    nearer = "On held-out prompts budcache is nearer to the full run than the published search"
    return [
        Claim("ours", less, cost, calls),
        Claim("ours", nearer, {case: gain.ahead for case, gain in ahead.items()}, gains),
    ]


if __name__ == "__main__":
    main()
