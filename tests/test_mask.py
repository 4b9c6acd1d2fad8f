from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budcache import Mask, PolicyError
from budcache.mask import MAX_STEPS

texts = st.text("01", max_size=60).map(lambda rest: "1" + rest)
masks = texts.map(Mask.parse)
sizes = st.tuples(st.integers(1, 200), st.integers(1, 200)).map(sorted)  # budget, steps


@given(texts)
def test_text_and_mask_are_the_same_thing(text):
    mask = Mask.parse(text)
    assert str(mask) == text
    assert eval(repr(mask)) == mask
    assert [int(bit) for bit in mask] == [int(character) for character in text]
    assert len(mask) == len(text)
    assert all(mask[k] is (text[k] == "1") for k in range(len(text)))


@given(masks)
def test_of_undoes_computed(mask):
    assert Mask.of(len(mask), mask.computed) == mask


@given(st.sets(st.integers(1, 99)))
def test_computed_undoes_of(chosen):
    chosen = chosen | {0}
    assert Mask.of(100, [*chosen, *chosen]).computed == tuple(sorted(chosen))


@given(texts)
def test_budget_counts_the_computed_steps(text):
    mask = Mask.parse(text)
    assert mask.budget == text.count("1") == len(mask.computed)


@given(masks)
def test_segments_part_the_run_at_the_computed_steps(mask):
    assert [k for begin, end in mask.segments for k in range(begin, end)] == list(range(len(mask)))
    assert tuple(begin for begin, _ in mask.segments) == mask.computed
    assert not any(mask[k] for begin, end in mask.segments for k in range(begin + 1, end))


@given(sizes)
def test_uniform_spends_its_budget_evenly(size):
    budget, steps = size
    mask = Mask.uniform(steps, budget)
    assert (len(mask), mask.budget, mask.computed[0]) == (steps, budget, 0)
    lengths = {end - begin for begin, end in mask.segments}
    assert max(lengths) - min(lengths) <= 1


def test_uniform_by_hand():
    assert str(Mask.uniform(10, 4)) == "1010010100"


@given(st.integers(1, 200))
def test_full_computes_every_step(steps):
    assert str(Mask.full(steps)) == "1" * steps
    assert Mask.full(steps) == Mask.uniform(steps, steps)


@given(masks, masks)
def test_equal_masks_are_one_key(one, other):
    again = Mask.parse(str(one))
    assert again == one
    assert hash(again) == hash(one)
    assert (one == other) == (str(one) == str(other))
    assert len({one, again, other}) == 1 + (one != other)


def test_any_truth_value_makes_a_bit():
    assert Mask((1, 0, 2)) == Mask([True, False, True]) == Mask.parse("101")
    assert all(type(bit) is bool for bit in Mask((1, 0)).bits)


def test_a_mask_cannot_be_changed():
    mask = Mask.parse("101")
    with pytest.raises(FrozenInstanceError):
        mask.bits = (True,)
    with pytest.raises(TypeError):
        mask[1] = True
    assert str(mask) == "101"


def test_the_longest_mask():
    assert Mask.parse("1" * MAX_STEPS) == Mask((1,) * MAX_STEPS) == Mask.full(MAX_STEPS)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Mask.parse(""), "got none"),
        (lambda: Mask(()), "got none"),
        (lambda: Mask.parse("0110"), "'0110'"),
        (lambda: Mask((False, True)), "'01'"),
        (lambda: Mask.of(3, [1, 2]), "'011'"),
        (lambda: Mask.of(3, []), "'000'"),
        (lambda: Mask.parse("1021"), "'2'"),
        (lambda: Mask.parse("10 1"), "' '"),
        (lambda: Mask.parse("10\n"), r"'\n'"),
        (lambda: Mask.parse("1\u0661"), "'\u0661'"),  # an Arabic digit one, but not ours
        (lambda: Mask.parse("x" * 900), "'x'"),
        (lambda: Mask.parse("0" * 900), "'000"),
        (lambda: Mask("100"), "'100'"),
        (lambda: Mask.parse("1" * 1001), "1001"),
        (lambda: Mask((1,) * 1001), "1001"),
        (lambda: Mask.parse("1" * 10**7), "10000000"),
        (lambda: Mask.of(0, []), "0 steps"),
        (lambda: Mask.of(-4, [0]), "-4"),
        (lambda: Mask.of(1001, [0]), "1001"),
        (lambda: Mask.full(10**18), str(10**18)),
        (lambda: Mask.of(4, [0, 4]), "step 4"),
        (lambda: Mask.of(4, [0, -1]), "step -1"),
        (lambda: Mask.of(4, [0, 10**30]), str(10**30)),
        (lambda: Mask.uniform(4, 0), "budget of 0"),
        (lambda: Mask.uniform(4, 5), "budget of 5"),
        (lambda: Mask.uniform(10**18, 10**18), str(10**18)),
    ],
)
def test_a_refusal_names_what_it_refuses(make, named):
    with pytest.raises(PolicyError) as refusal:
        make()
    text = str(refusal.value)
    assert named in text
    assert text.isprintable()
    assert text.endswith(".")
    assert len(text) < 200
