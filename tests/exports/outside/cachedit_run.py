"""An exported YAML through cache-dit's own reader, on tiny-flux: which steps are computed in full."""

from __future__ import annotations

import json
import sys

import cache_dit
from exports.policies import drawn, policies, run, stock

given = json.loads(sys.argv[1])
pipe = stock()
full, expected = run(pipe), drawn(policies(tuple(given["levels"]))["residual"])
computed: list[int] = []
last = pipe.transformer.single_transformer_blocks[-1]
last.register_forward_hook(lambda *_: computed.append(step))
count, step = 0, -1


def begin(*_: object) -> None:
    global step
    step += 1


pipe.transformer.register_forward_pre_hook(begin)
cache_dit.enable_cache(pipe, **cache_dit.load_configs(given["file"]))
found = run(pipe)
cache_dit.disable_cache(pipe)
error = (found - expected).pow(2).mean().item(), (full - expected).pow(2).mean().item()
print(json.dumps({"computed": computed, "error": error[0], "full": error[1]}))
