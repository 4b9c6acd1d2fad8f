from __future__ import annotations

import os

from hypothesis import settings

# One thread: results do not depend on the machine, and parallel test runs do not fight for its cores.
# Said by environment, so that tests of plain values need not import torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("budcache", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("budcache")
