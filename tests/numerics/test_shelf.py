"""A shelf: what waits there comes back to the last bit, and no more than allowed is in main memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budcache import FileError
from budcache.numerics.memory import leaves, park, size_of, unpark
from budcache.numerics.rollout import State
from budcache.numerics.shelf import Shelf, part_of

numbers = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64])


def tensor(seed, *shape, dtype=torch.float32):
    return (100 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


@settings(max_examples=40)
@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50)), min_size=1, max_size=12),
    dtype=numbers,
    bound=st.integers(0, 3000),
    again=st.lists(st.integers(0, 11), max_size=12),
)
def test_everything_comes_back_and_the_bound_holds(shapes, dtype, bound, again):
    with Shelf(bound) as shelf:
        there = [tensor(seed, *shape, dtype=dtype) for seed, shape in enumerate(shapes)]
        kept = [shelf.keep(each) for each in there]
        assert shelf.size <= bound
        assert shelf.size + shelf.written == sum(map(size_of, there))
        for place in [number % len(kept) for number in again]:
            assert torch.equal(kept[place].get(), there[place])
        for one, right in zip(kept, there, strict=True):
            assert torch.equal(one.get(), right) and one.get().dtype == dtype
            assert torch.equal(one.part(3, 9), right[:, 3:9])
            assert torch.equal(part_of(one, 0, 10**6), part_of(right, 0, 10**6))


def test_what_was_used_last_stays_in_main_memory():
    shelf = Shelf(2 * 400)
    first, second = (shelf.keep(tensor(seed, 100)) for seed in (0, 1))
    first.get()
    third = shelf.keep(tensor(2, 100))
    assert [one._key in shelf._here for one in (first, second, third)] == [True, False, True]


def test_a_tensor_is_put_there_once_however_often_it_comes_by():
    """States share most of their tensors with those before them, also once these were read again."""
    shelf, one = Shelf(0), tensor(0, 400)
    kept = shelf.keep(one)
    assert shelf.keep(one) is kept
    assert shelf.keep(kept.get()) is kept
    kept.home = torch.device("meta")  # stands for an accelerator: coming back makes another tensor
    assert kept.back().is_meta and shelf.keep(kept.back()) is kept
    assert shelf.written == 1600
    assert Shelf(0).keep(one) is not kept, "another shelf is another place"


def test_a_part_of_something_larger_does_not_hold_all_of_it():
    shelf, whole = Shelf(), tensor(0, 2, 1000)
    kept = shelf.keep(whole[:1])
    assert shelf._here[kept._key].untyped_storage().nbytes() == kept.size == 4000


@pytest.mark.parametrize("bound", [0, 10**9])
def test_what_nobody_wants_any_more_makes_room(bound):
    shelf = Shelf(bound)
    kept = [shelf.keep(tensor(seed, 1000)) for seed in range(4)]
    end = shelf._end
    gc.disable()  # it must go at once, not when somebody counts
    try:
        del kept[1:]
        assert shelf.size + shelf.written == 4000
    finally:
        gc.enable()
    more = [shelf.keep(tensor(seed, 1000)) for seed in range(4, 7)]
    assert shelf._end == end, "places in the file are used again"
    assert torch.equal(more[2].get(), tensor(6, 1000)) and torch.equal(kept[0].get(), tensor(0, 1000))


def test_a_state_waits_with_all_its_parts():
    shelf, x, v = Shelf(0), tensor(0, 1, 300), tensor(1, 1, 300)
    state = State(x, 3, (v, x), memo={"trunk": [v, 5]}, past=(1, None), start=x)
    parked = park(state, shelf)
    assert len(set(map(id, leaves(parked)))) == 2, "the same tensor is one thing"
    assert size_of(parked) == size_of(state)
    assert park(parked, shelf) is parked
    back = unpark(parked)
    assert (back.step, back.past) == (3, (1, None))
    assert all(map(torch.equal, leaves(back), leaves(state)))
    assert park(State(tensor(0, 2, 2)), shelf).x.shape == (2, 2), "what is small stays where it is"


def test_the_file_is_gone_however_the_process_ends(tmp_path):
    """It has no name: not even a kill leaves it behind."""
    code = (
        "import os, torch\n"
        "from budcache.numerics.shelf import Shelf\n"
        "shelf = Shelf(0)\n"
        "kept = shelf.keep(torch.ones(10**6))\n"
        "assert kept.get().sum() == 10**6\n"
        "os.kill(os.getpid(), 9) if os.name == 'posix' else os._exit(9)\n"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(FileError, match=r"nowhere: .*set TMPDIR to another place"):
        Shelf(0).keep(tensor(0, 100))
