from __future__ import annotations

import numpy as np
import pytest
import torch
from budcache.jobs.job import digest, memory_said
from PIL import Image

from budcache import SearchError


def generator(seed):
    return torch.Generator().manual_seed(seed)


def noise(seed):
    return torch.randn(1, 4, 40, 40, generator=generator(seed))  # so long that its repr is shortened


def nearly(seed):
    """The same but for one value in the middle, which its repr does not show."""
    changed = noise(seed)
    changed[0, 2, 20, 20] += 1
    return changed


def picture(size=(8, 4), grey=0):
    return Image.new("RGB", size, (grey, grey, grey))


def test_plain_samples_have_the_digest_that_they_always_had():
    """Ledgers and policies hold them."""
    plain = [{"prompt": "a cat", "height": 64, "guidance_scale": 3.5}, {"prompt": ["a", "b"], "strength": None}]
    assert digest(plain) == "f2c60e25028751fc"
    assert digest([{"prompt": "a cat", "generator": generator(7)}]) == "576dd53041528f40"


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: [generator(1), generator(2)], lambda: [generator(1), generator(3)]),
        (lambda: noise(0), lambda: nearly(0)),
        (lambda: [noise(0)], lambda: [nearly(0)]),
        (lambda: [[noise(0)], None], lambda: [[nearly(0)], None]),
        (lambda: (noise(0).numpy(),), lambda: (nearly(0).numpy(),)),
        (lambda: {"noise": noise(0), "scale": 1.0}, lambda: {"noise": nearly(0), "scale": 1.0}),
        (lambda: [picture()], lambda: [picture(grey=1)]),
        (lambda: picture(), lambda: picture(size=(4, 8))),
        (lambda: [noise(0).bfloat16()], lambda: [noise(1).bfloat16()]),
        (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    ],
    ids=["generators", "tensor", "tensors", "nested", "arrays", "mapping", "pictures", "sizes", "bfloat16", "shapes"],
)
def test_samples_are_told_apart_by_what_is_in_them(make, other):
    assert digest([{"given": make()}]) == digest([{"given": make()}])
    assert digest([{"given": make()}]) != digest([{"given": other()}])


def test_the_order_of_a_mapping_says_nothing():
    assert digest([{"given": {"a": 1, "b": 2}}]) == digest([{"given": {"b": 2, "a": 1}}])


def test_a_lack_of_memory_promises_nothing_of_ledgers():
    """Not everything that runs out of memory keeps one."""
    with pytest.raises(SearchError, match=r"ran out of memory\. Use a smaller batch") as caught, memory_said():
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert "ledger" not in str(caught.value)
