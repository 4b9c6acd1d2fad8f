"""A model that is distilled to few steps: 4, 5 and 6 of its 8 calls, and whether such a model is needed at all.

The paper takes Hyper-SD, a LoRA that makes FLUX.1-dev an 8-step model; here it is tiny-flux with its LoRA `turbo`,
`--lora` takes another one.

Two more tables: what 5 calls are worth on the distilled and on the plain model, by the distance to the plain model's
28-step run and by how often the picture is recognised; and policies that were searched with the LoRA and are served
without it, as those of the authors' FLUX code are, and the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import Lab
from judging import Judge
from PIL import Image
from published import FEW_STEPS, FEW_STEPS_SOURCE
from telling import WHO, Claim, Table, ahead_by, beats, left_out, of_all, paired, side_by_side, told, with_error

from budcache import Ladder, Mask, Policy
from budcache.comparison.methods import SOLVERS
from budcache.metrics import psnr

FEWER = ("fewer-steps", *SOLVERS)
THUMBNAILS = Path(__file__).parents[2] / "tests" / "models" / "thumbnails.png"  # 100 emoji of 16 pixels
LONG = (28, 8)  # steps of the plain model; the second is for --quick
GOAL, NEARER = 3.0, 4.0  # dB above TeaCache; dB by which the distilled model is to be nearer to the long run


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("few_steps", __doc__ or "", argv, steps=(8, 5), budgets=((4, 5, 6), (3,)), evaluation=64, lora="turbo")
    policies = {
        "authors": Ladder.of([lab.published(budget).ladder[budget] for budget in lab.budgets]),
        "budcache-plain": lab.ours(fit=False, budgets=lab.budgets).ladder,
        "budcache": lab.ours(budgets=lab.budgets).ladder,
    }
    found = lab.compare("few steps", lab.budgets, [*FEWER, "uniform", "teacache"], policies)
    cases = {f"{budget} of {lab.steps} steps": (found, budget) for budget in lab.budgets}
    claims = [
        beats(cases, who, ["teacache"], "Table 6", f"On a run of few steps {name} is better than TeaCache")
        for who, name in WHO.items()
    ]
    most = {case: each for case, each in cases.items() if each[1] > min(lab.budgets)} or cases
    text = f"budcache is at least {GOAL:g} dB above TeaCache at equal calls"
    claims.append(ahead_by(most, ["teacache"], GOAL, text))
    claims.append(ahead_by(cases, FEWER, 0.0, "budcache is above fewer steps of every solver"))
    title = f"A distilled model of {lab.steps} steps; beside it {FEW_STEPS_SOURCE}"
    tables = [side_by_side(title, cases, {}, head="budget", elsewhere={"not given": FEW_STEPS})]
    notes = left_out([found])
    if lab.lora is None:
        notes.append("Without a LoRA there is no plain model beside the distilled one: the other tables are left out.")
    else:
        pair = Pair(lab)
        for table, more in (pair.worth(), pair.crosswise()):
            tables.append(table)
            claims += more
    lab.report(tables, claims, notes)


class Pair:
    """The distilled and the plain model side by side, on the same prompts and noise."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.long = lab, LONG[lab.quick]
        self.calls = 5 if 5 in lab.budgets else lab.budgets[0]
        self.plain = lab.load(lab.args.model)
        self.prompts, self.emoji = recognisable(lab) if lab.embedded else (lab.evaluation, None)

    def searched(self, pipe: Any, steps: int) -> Policy:
        """Our policy of one of the models, at one number of steps."""
        budgets = self.lab.budgets if steps == self.lab.steps else [self.calls]
        return self.lab.ours(budgets=budgets, pipe=pipe, steps=steps, name=f"ours-{steps}").ladder[self.calls]

    def judge(self, pipe: Any, steps: int) -> Judge:
        self.lab.say(f"drawing: {steps} steps, {'distilled' if pipe is self.lab.pipe else 'plain'}")
        return Judge(pipe, self.prompts, steps, **self.lab.call)

    def worth(self) -> tuple[Table, list[Claim]]:
        """Five calls of the distilled model, or five of the plain one?"""
        lab, calls, short = self.lab, self.calls, self.lab.steps
        slow, fast = self.judge(self.plain, self.long), self.judge(lab.pipe, short)
        drawn = {
            f"plain, {self.long} steps": (self.long, slow.full),
            f"plain, {short} steps": (short, slow.draw(Policy(mask=Mask.full(short)))),
            f"plain, {calls} steps": (calls, slow.draw(Policy(mask=Mask.full(calls)))),
            f"plain, budcache of {self.long} steps": (calls, slow.draw(self.searched(self.plain, self.long))),
            f"distilled, {short} steps": (short, fast.full),
            f"distilled, {calls} steps": (calls, fast.draw(Policy(mask=Mask.full(calls)))),
            f"distilled, budcache of {short} steps": (calls, fast.draw(self.searched(lab.pipe, short))),
        }
        near = {
            name: [min(psnr(a, b), 100.0) for a, b in zip(pictures, slow.full, strict=True)]
            for name, (_, pictures) in drawn.items()
        }
        right = {name: self.recognised(pictures) for name, (_, pictures) in drawn.items()}
        rows: list[list[Any]] = []
        for name, (made, _) in drawn.items():
            share = None if right[name] is None else f"{sum(right[name])} of {len(right[name])}"
            rows.append([name, made, with_error(near[name]) if near[name] != near[next(iter(near))] else None, share])
        title = f"What calls are worth: PSNR to the plain model's run of {self.long} steps, and pictures recognised"
        table = Table(title, ["model", "calls", "PSNR ± error", "recognised"], rows)
        names = list(drawn)
        text = (
            f"{short} distilled steps are at least {NEARER:g} dB nearer to {self.long} plain steps than {short} plain"
        )
        claims = [nearer(near[names[4]], near[names[1]], NEARER, text)]
        text = f"{calls} calls of the distilled model are nearer to it than {calls} calls of the plain model, both ours"
        claims.append(nearer(near[names[6]], near[names[3]], 0.0, text))
        if right[names[4]] is not None:
            apart = paired(*(list(map(float, right[names[i]] or ())) for i in (4, 0)))
            text = f"{short} distilled steps are recognised at least as often as {self.long} plain ones"
            percent = f"{100 * apart.mean:+.1f} ± {100 * (apart.error or 0):.1f} % of the pictures"
            claims.append(Claim("ours", text, {f"{len(self.prompts)} emoji": apart.ahead}, percent))
        return table, claims

    def recognised(self, pictures: Sequence[Any]) -> list[bool] | None:
        """For each picture, whether the nearest of all known emoji, either way round, is the one that was asked for."""
        if self.emoji is None:
            return None
        names, known = self.emoji
        found = []
        for prompt, picture in zip(self.prompts, pictures, strict=True):
            size = len(picture) // 16
            small = np.asarray(picture).reshape(16, size, 16, size, 3).mean((1, 3))
            sides = [np.square(small - side).mean((1, 2, 3)) for side in (known, known[:, :, ::-1])]
            found.append(names[int(np.minimum(*sides).argmin())] == prompt)
        return found

    def crosswise(self) -> tuple[Table, list[Claim]]:
        """Searched with the LoRA and served without it, and the reverse, at both numbers of steps."""
        models = {"plain": self.plain, "distilled": self.lab.pipe}
        rows, verdicts, numbers = list[list[Any]](), dict[str, bool | None](), list[str]()
        for steps in (self.lab.steps, self.long):
            found = {name: self.searched(pipe, steps) for name, pipe in models.items()}
            for served, pipe in models.items():
                judge, other = self.judge(pipe, steps), "plain" if served == "distilled" else "distilled"
                masks = {name: Policy(mask=policy.mask) for name, policy in found.items()}
                for searched in models:
                    ratios = [judge.ratios(each[searched]) for each in (found, masks)]
                    rows.append([f"{self.calls} of {steps}", searched, served, *map(with_error, ratios)])
                apart = judge.lead(found[served], found[other])
                case = f"{self.calls} of {steps} steps of the {served} model"
                verdicts[case] = apart.ahead
                numbers.append(f"{case}: {told(replace(apart, mean=-apart.mean))} dB")
        columns = ["calls", "searched on", "served on", "PSNR ± error", "its mask with plain reuse"]
        title = "Searched with the LoRA and served without it, and the reverse: PSNR to the served model's own full run"
        text = (
            "A policy that was searched on the other model, with or without the LoRA, is worse than one searched here"
        )
        return Table(title, columns, rows), [Claim("ours", text, verdicts, ", ".join(numbers))]


def nearer(one: Sequence[float], other: Sequence[float], least: float, text: str) -> Claim:
    """One is ahead of the other on the same prompts by so many decibels."""
    apart = paired(one, other)
    return Claim("ours", text, {f"{len(one)} prompts": of_all([apart], least)}, f"{told(apart)} dB")


def recognisable(lab: Lab) -> tuple[list[str], tuple[list[str], np.ndarray]]:
    """Prompts whose pictures are known, none of which was learned on; and all that is known, by name."""
    names = THUMBNAILS.with_suffix(".txt").read_text(encoding="utf-8").splitlines()
    sheet = np.asarray(Image.open(THUMBNAILS).convert("RGB"), dtype=np.float32) / 255
    known = sheet.reshape(10, 16, 10, 16, 3).swapaxes(1, 2).reshape(100, 16, 16, 3)
    prompts = [name for name in names if name not in lab.learned][: len(lab.evaluation)]
    return prompts, (names, known)


if __name__ == "__main__":
    main()
