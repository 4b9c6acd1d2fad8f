"""The settings of other methods that `budcache demo` uses, and the published search: it has no time for them.

Each method at its best, as in `budcache compare`: chosen on the calibration prompts that the demo searches on, and as
many of them, by quality at the budget. The file says where it came from and what choosing took (for tiny-flux about
64,000 sample-calls, a quarter of an hour on a busy core). `--model tiny-wan` makes those of `budcache demo --video`.
Killed, the same command goes on with what its folder holds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import torch

from budcache import Ladder, models
from budcache.cli.demo import PICTURES, VIDEOS
from budcache.comparison.choosing import SETTINGS
from budcache.comparison.preparing import Preparation
from budcache.comparison.searching import searched
from budcache.events import Event, Progress
from budcache.jobs.meter import Meter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[PICTURES.model, VIDEOS.model], default=PICTURES.model)
    parser.add_argument("--folder", type=Path, help="default: out/tune_demo, and the model's name")
    parser.add_argument("--out", type=Path, help="default: beside the demo")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    show = VIDEOS if args.model == VIDEOS.model else PICTURES
    folder, out = args.folder or Path("out/tune_demo") / show.model, args.out or show.settings
    assert out is not None
    folder.mkdir(parents=True, exist_ok=True)
    pipe = models.load(show.model)
    pipe.set_progress_bar_config(disable=True)
    samples = [{"prompt": prompt} for prompt in show.texts("calibration", show.calibration)]
    spent = [0]

    def watch(event: Event) -> None:
        if isinstance(event, Progress):
            spent[0] = event.sample_calls

    meter = Meter("compare", watch)
    preparation = Preparation(pipe, show.steps, show.compared, samples, folder, {}, 0, show.batch, meter)
    begin = time.perf_counter()
    for method in show.tuned:
        for budget in show.compared:
            chosen = preparation.ready(method, budget)[0]
            seconds = time.perf_counter() - begin
            print(f"{seconds:6.0f} s  {method} at {budget} calls: {chosen.knob}", file=sys.stderr, flush=True)
    if show.published is not None:
        options = {"kind": type(pipe).__name__, "steps": show.steps, "samples": samples, "seed": 0, "batch": show.batch}
        options |= {"care": "typical"}
        found = [
            searched("authors", pipe, budgets=[budget], ledger=folder / f"{budget}.jsonl", meter=meter, **options)
            for budget in show.compared
        ]
        Ladder.of([ladder[budget] for ladder, budget in zip(found, show.compared, strict=True)]).save(show.published)
    shutil.copy(folder / SETTINGS, out)
    print(f"{out}: {spent[0]} sample-calls")


if __name__ == "__main__":
    main()
