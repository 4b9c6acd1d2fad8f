"""The contract for every method we ship, on every kind of pipeline it runs on; and methods that break it."""

from __future__ import annotations

import pytest
from kinds import HERE, KINDS, STEPS, calibrated, fits, known, sample

pytest.register_assert_rewrite("budcache.testing")

from budcache.testing import BaselineContract  # noqa: E402

CASES = [(name, kind) for kind in KINDS for name in HERE if fits(name, kind)]


@pytest.mark.parametrize(("name", "kind"), CASES)
class TestShipped(BaselineContract):
    steps = STEPS

    @pytest.fixture(autouse=True)
    def _choose(self, name, kind):
        self.name, self.kind = name, kind
        size = 32 if kind.startswith(("wan", "qwen")) else 64
        self.other_size = {"height": size, "width": size}

    def method(self):
        return calibrated(self.kind, self.name)

    def pipe(self):
        return known(self.kind)[1]

    def sample(self, seed=0):
        return sample(known(self.kind)[0], seed)
