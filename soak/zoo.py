"""Every kind of pipeline in the zoo: fitted policies, guidance apart, recording and `handle.use`.

The four promises of `tests/pipeline/test_coverage.py` hold for all of them in every run of the tests; here come those
that are tested on a few kinds there. A pipeline that cannot have something has to say so in a sentence.

    python -m soak.zoo               # all kinds
    python -m soak.zoo --count 5     # some, drawn with the seed
"""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections import Counter
from typing import Any

from soak.common import ZOO, main, require

ROWS = ({"outputs": [1.0], "noise": 0.01}, {"outputs": [1.2, -0.2]}, {"outputs": [1.1, -0.2, 0.1], "noise": -0.01})
GUIDED = ({"outputs": [0.6], "branch": [0.4]}, {"outputs": [0.9, -0.1], "branch": [0.2]}, {"outputs": [1.0]})
MASK = "110100"


def soak(seed: int, count: int) -> dict[str, Any]:
    """So many kinds; all of them if there are fewer."""
    sys.path[:0] = ZOO
    warnings.simplefilter("ignore")
    import torch
    from zoo import ENTRIES

    torch.set_num_threads(1)
    kinds = list(ENTRIES)
    if count < len(kinds):
        kinds = random.Random(seed).sample(kinds, count)
    kept, told = Counter[str](), dict[str, str]()
    for kind in kinds:
        for promise, outcome in promises(kind).items():
            kept[promise] += outcome is None
            if outcome is not None:
                told[f"{kind.name}: {promise}"] = outcome
    return {"kinds": len(kinds), **kept, "cannot_have": told}


def promises(kind: Any) -> dict[str, str | None]:
    """What was kept: None, or the sentence that says why this kind cannot have it."""
    from helpers import latents

    from budcache import PipelineError

    pipe = kind.build()
    bare, found = latents(kind, pipe), dict[str, str | None]()
    for name, promise in {"fitted": fitted, "guidance apart": apart, "recorded": recorded, "use": used}.items():
        try:
            found[name] = promise(kind, pipe, bare)
        except PipelineError as error:
            require("\n" not in str(error), f"{kind.name}, {name}: more than one line")
            found[name] = str(error)
        same = _equal(latents(kind, pipe), bare)
        require(same, f"{kind.name}: {name} leaves a trace")
    return found


def fitted(kind: Any, pipe: Any, bare: Any, **more: Any) -> str | None:
    """Rows are served as they are rolled out through the seam, bit for bit."""
    from helpers import latents, rolled

    import budcache
    from budcache import Policy

    policy = Policy(mask=MASK, rows=ROWS, **more)
    with budcache.applied(pipe, policy):
        served = latents(kind, pipe)
    if _is_searchable(kind):
        require(_equal(rolled(kind, pipe, policy), served), f"{kind.name}: rows are served otherwise than rolled")
    return None


def apart(kind: Any, pipe: Any, bare: Any) -> str | None:
    """With weights of the conditional branch alone: used where there is one, else the rows are."""
    return fitted(kind, pipe, bare, guided=GUIDED)


def recorded(kind: Any, pipe: Any, bare: Any) -> str | None:
    """A recorded run is the run itself, and it is in the record."""
    from helpers import latents

    import budcache

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", budcache.BudcacheWarning)
        with budcache.recording(pipe) as record:
            for number in range(2):
                found = latents(kind, pipe, number)
                require(number or _equal(found, bare), f"{kind.name}: a recorded run is another one")
    ours = [str(each.message) for each in said if issubclass(each.category, budcache.BudcacheWarning)]
    require(len(record) == 2 or ours, f"{kind.name}: a run is not in the record, and nobody says so")
    if len(record) < 2:
        return ours[0]
    require(record.ladder([3])[3].budget == 3, f"{kind.name}: no ladder from its record")
    return None


def used(kind: Any, pipe: Any, bare: Any) -> str | None:
    """A policy changed between runs is the one that is applied afresh."""
    from helpers import latents

    import budcache
    from budcache import Ladder, Policy

    ladder = Ladder.of([Policy(mask="100100"), Policy(mask=MASK, rows=ROWS)])
    fresh = {}
    for rung in ladder:
        with budcache.applied(pipe, rung):
            fresh[rung.budget] = latents(kind, pipe)
    with budcache.applied(pipe, ladder, budget=2) as handle:
        for budget in (3, 2, 3):
            handle.use(budget=budget)
            require(_equal(latents(kind, pipe), fresh[budget]), f"{kind.name}: use({budget}) is not apply({budget})")
    return None


def _equal(one: Any, other: Any) -> bool:
    import torch

    return torch.equal(one, other)


def _is_searchable(kind: Any) -> bool:
    return kind.name != "ltx2"  # it copies its scheduler, as the coverage test says


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("zoo", __doc__, soak, 1000)
