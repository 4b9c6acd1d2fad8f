"""The settings of other methods that `budcache demo` uses: it has no time to choose them, so they are chosen here.

Each method at its best, as in `budcache compare`: chosen on the calibration prompts that the demo searches on, and as
many of them, by quality at the budget. The file says where it came from and what choosing took (8,700 sample-calls,
four minutes on one core). Killed, the same command goes on with what its folder holds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import torch

from budcache import models
from budcache.cli.demo import CALIBRATION, COMPARED, MODEL, STEPS, TUNED
from budcache.cli.demo import SETTINGS as HOME
from budcache.comparison.preparing import SETTINGS, Preparation
from budcache.events import Event, Progress
from budcache.jobs.meter import Meter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("out/tune_demo"))
    parser.add_argument("--out", type=Path, default=HOME)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.folder.mkdir(parents=True, exist_ok=True)
    pipe = models.load(MODEL)
    pipe.set_progress_bar_config(disable=True)
    samples = [{"prompt": prompt} for prompt in models.prompts(MODEL, "calibration")[:CALIBRATION]]
    spent = [0]

    def watch(event: Event) -> None:
        if isinstance(event, Progress):
            spent[0] = event.sample_calls

    preparation = Preparation(pipe, STEPS, COMPARED, samples, args.folder, {}, 0, 8, Meter("compare", watch))
    begin = time.perf_counter()
    for method in TUNED:
        for budget in COMPARED:
            chosen = preparation.ready(method, budget)[0]
            seconds = time.perf_counter() - begin
            print(f"{seconds:6.0f} s  {method} at {budget} calls: {chosen.knob}", file=sys.stderr, flush=True)
    shutil.copy(args.folder / SETTINGS, args.out)
    print(f"{args.out}: {spent[0]} sample-calls")


if __name__ == "__main__":
    main()
