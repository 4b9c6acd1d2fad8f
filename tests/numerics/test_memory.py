"""States that wait, their size, and running out of memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from budcache import SearchError
from budcache.numerics.memory import out_of_memory_as_error, park, size_of, unpark
from budcache.numerics.rollout import State


def test_a_state_is_as_large_as_its_tensors_wherever_they_are():
    x = torch.zeros(2, 3, dtype=torch.float64)  # 48 bytes
    assert size_of(x) == 48
    assert size_of([x, (x, {"a": x, "b": 3})]) == 3 * 48
    assert size_of(State(x, 1, (x, x), {"trunk": [x]}, (1, SimpleNamespace(sample=x)))) == 5 * 48
    assert size_of((None, "text", 3, torch.Tensor)) == 0


def test_what_is_on_the_cpu_is_not_copied():
    state = State(torch.ones(1, 2), outputs=(torch.ones(2),), memo={"trunk": torch.ones(2)})
    assert park(state) is state
    assert unpark(state) is state


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
    ids=["cuda", "python", "cpu"],
)
def test_a_lack_of_memory_becomes_a_sentence(error):
    """One that promises nothing of ledgers: not everything that runs out of memory keeps one."""
    with (
        pytest.raises(SearchError, match=r"ran out of memory\. Use a smaller batch") as caught,
        out_of_memory_as_error(),
    ):
        raise error
    assert "ledger" not in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        torch.linalg.LinAlgError("the input matrix is singular"),
        NotImplementedError("a kind of RuntimeError"),
        ValueError("memory"),
        SearchError("memory"),
    ],
)
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)) as caught, out_of_memory_as_error():
        raise error
    assert caught.value is error
