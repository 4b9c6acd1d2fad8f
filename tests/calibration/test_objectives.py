"""Objectives: what they measure, and the names under which a ledger keeps their scores."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import types
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from toys import Toy

from budcache import SearchError
from budcache.calibration.fingerprint import fingerprint
from budcache.calibration.objectives import PixelError, latent_mse, name_of, objective, squared_errors

# What they measure


def test_small_errors_are_not_lost_in_half_precision():
    teacher = torch.full((2, 4), 300.0, dtype=torch.float16)
    assert latent_mse(teacher + 0.25, teacher, None).tolist() == [0.0625] * 2
    assert latent_mse(torch.zeros(2, 4, dtype=torch.float16), teacher, None).tolist() == [90_000] * 2  # beyond float16


def test_errors_are_those_of_each_sample():
    one, other = Toy(0, 3).noise.reshape(3, 2, 3), Toy(1, 3).noise.reshape(3, 2, 3)
    expected = [((x - y) ** 2).mean() for x, y in zip(one, other, strict=True)]
    torch.testing.assert_close(squared_errors(one, other), torch.stack(expected))


class Decoding:
    """A run that decodes latents to arrays, and counts."""

    def __init__(self):
        self.decoded = 0

    def decode(self, x):
        self.decoded += 1
        return [np.asarray(each) / 2 + 0.5 for each in x]


def test_the_pixel_error_is_of_values_from_minus_one_to_one_and_decodes_the_teacher_once():
    error, runs = PixelError(), [Decoding(), Decoding()]
    student, teacher = torch.zeros(2, 4), torch.tensor([[0.5] * 4, [-1.0] * 4])
    for run in (*runs, *runs):
        assert error(student, teacher, run).tolist() == [0.25, 1.0]
    assert [run.decoded for run in runs] == [3, 3]
    assert error(student, student, Decoding()).tolist() == [0.0, 0.0]


def test_objectives_by_name():
    assert objective("latent") is latent_mse
    assert isinstance(objective("pixel"), PixelError)
    assert objective(latent_mse) is latent_mse
    with pytest.raises(SearchError, match=r"there is no objective 'pixels'\. Use 'latent', 'pixel' or a function\."):
        objective("pixels")


# Their names. Each maker below makes an objective from a number, as a user might.

SCALE = 1.0


def closure(number):
    def loss(student, teacher, run):
        return float((student - teacher).abs().mean()) * number

    return loss


def default(number):
    def loss(student, teacher, run, *, scale=number):
        return scale

    return loss


def nested(number):
    def loss(student, teacher, run):
        def inner():
            return [each * number for each in student]

        return sum(inner())

    return loss


def function_in_function(number):
    helper = closure(number)

    def loss(student, teacher, run):
        return helper(student, teacher, run) + 1

    return loss


def array(number):
    weights = np.full((2, 3), 0.5)
    weights[1, 2] = number
    return lambda student, teacher, run: float((weights * np.asarray(student)).sum())


def tensor(number):
    weights = torch.zeros(3000, dtype=torch.bfloat16)  # so long that its repr is shortened
    weights[1500] = number
    return lambda student, teacher, run: float((weights * student).sum())


def network(number):
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(number)
    return lambda student, teacher, run: layer(student).mean()


def mapping(number):
    weights = {"b": {2, 3}, "a": [number], ("c", 1): frozenset({"x", "y", "z"})}
    return lambda student, teacher, run: weights["a"][0]


def random_state(number):
    rng = np.random.default_rng(int(number))
    return lambda student, teacher, run: rng.random()


def constants(number):
    """Another number in the code itself."""
    code = f"def loss(student, teacher, run):\n    return float((student - teacher).abs().mean()) * {number}\n"
    names = {"__name__": "__main__"}
    exec(code, names)
    return names["loss"]


def global_name(number):
    """A function that looks its number up among the global names of its module."""
    names = {"__name__": "__main__", "__builtins__": __builtins__, "number": number}
    exec("def loss(student, teacher, run):\n    return helper() + 1\ndef helper():\n    return number\n", names)
    return names["loss"]


def recursive(number):
    names = {"__name__": "__main__", "number": number}
    exec("def loss(student, teacher, run):\n    return loss(1, 2, 3) if student else number\n", names)
    return names["loss"]


def recursive_closure(number):
    def loss(student, teacher, run):
        return loss(None, None, None) if student else number

    return loss


class Callable:
    """An objective that is an object."""

    def __init__(self, number):
        self.number = number

    def __call__(self, student, teacher, run):
        return self.number * self.unit()

    def unit(self):
        return 1.0

    method = __call__


@dataclass(frozen=True)
class Slotted:
    __slots__ = ("number", "weights")
    number: float
    weights: tuple

    def __call__(self, student, teacher, run):
        return self.number


@dataclass
class Holding:
    """What holds itself can be named as well."""

    number: float
    others: list = field(default_factory=list)

    def __call__(self, student, teacher, run):
        return self.number


def holding_itself(number):
    found = Holding(number)
    found.others.append(found)
    return found


def class_in_function(number):
    class Loss:
        scale = number

        def __call__(self, student, teacher, run):
            return self.scale

    return Loss()


def cached(number):
    @functools.cache
    def weight(step):
        return step * number

    return lambda student, teacher, run: weight(3)


MAKERS = [
    *(closure, default, nested, function_in_function, array, tensor, network, mapping, random_state),
    *(constants, global_name, recursive, recursive_closure, Callable, holding_itself, class_in_function, cached),
    lambda number: Slotted(number, (1, 2)),
    lambda number: Callable(number).method,
    lambda number: functools.partial(closure(2.0), number),
    lambda number: functools.partial(default(2.0), scale=number),
    lambda number: functools.partial(Callable(number), run=None),
]
NAMES = [
    *(maker.__name__ for maker in MAKERS[:17]),
    *("slots", "bound method", "partial", "partial by keyword", "partial of an object"),
]
each_maker = pytest.mark.parametrize("make", MAKERS, ids=NAMES)


@each_maker
def test_a_name_says_what_is_computed(make):
    assert name_of(make(1.0)) == name_of(make(1.0))
    assert name_of(make(1.0)) != name_of(make(2.0))
    assert "0x" not in name_of(make(1.0))


def named_here():
    return "\n".join(name_of(make(number)) for make in MAKERS for number in (1.0, 2.0))


def test_names_are_the_same_in_another_process():
    """Of another hash seed, so that nothing depends on the order of sets, and with everything at other addresses."""
    here = Path(__file__).parent
    paths = [str(path) for path in (here, here.parent, here.parent / "pipeline")]
    program = f"import sys; sys.path[:0] = {paths!r}; import test_objectives as t; "
    done = subprocess.run(
        [sys.executable, "-c", f"{program} junk = [object() for _ in range(999)]; print(t.named_here())"],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == named_here().splitlines()


def test_the_order_in_which_things_are_put_says_nothing():
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"x", "y", "z"}) == fingerprint({"z", "y", "x"})
    assert fingerprint([1, 2]) != fingerprint([2, 1])
    text = "".join(["ab", "c"])  # equal to, but not the same object as a literal
    assert fingerprint(["abc", "abc"]) == fingerprint(["abc", text])


def test_kinds_of_numbers_are_told_apart():
    values = [1, 1.0, True, "1", b"1", None, (1,), [1], np.float32(1), np.float64(1), torch.tensor(1), np.array(1)]
    values += [np.zeros((2, 3)), np.zeros((3, 2)), torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.float64)]
    assert len({fingerprint(value) for value in values}) == len(values)
    array = np.arange(6.0).reshape(2, 3)
    assert fingerprint(array) == fingerprint(np.asfortranarray(array)) == fingerprint(array[::1].copy())
    assert fingerprint(torch.tensor(array).T.contiguous().T) == fingerprint(torch.tensor(array))


def written(source, **names):
    """An objective from source text, as if in a script of the user's."""
    names = {"__name__": "__main__", "torch": torch, **names}
    exec(source, names)
    return names["loss"]


def test_only_names_that_are_looked_up_count():
    """An attribute of the same name as a global is another thing; a lock that nothing uses does no harm."""
    source = "def loss(student, teacher, run):\n    return student.mean() + torch.zeros(1)\n"
    assert name_of(written(source)) == name_of(written(source, mean=threading.Lock(), other=3))


def test_where_a_function_is_written_says_nothing():
    source = "def loss(student, teacher, run):\n    return 3.0\n"
    assert name_of(written(source)) == name_of(written("\n\n# a comment\n" + source))
    assert name_of(written(source)) != name_of(written(source.replace("3.0", "4.0")))
    assert name_of(written(source)) != name_of(written(source.replace("return 3.0", "return -3.0")))


def test_another_class_of_the_same_name_and_state_is_another_objective():
    sources = [
        f"class Loss:\n    def __init__(self): self.a = 1\n    def __call__(self, *_): return self.a {sign} 1\n"
        for sign in "+-"
    ]
    made = [written(f"{source}\nloss = Loss()\n") for source in sources]
    assert name_of(made[0]) != name_of(made[1])
    assert name_of(made[0]) == name_of(written(f"{sources[0]}\nloss = Loss()\n"))


def test_a_base_class_counts_too():
    heir = "class Loss(Base):\n    def __call__(self, *_): return self.unit()\nloss = Loss()\n"
    made = [written(f"class Base:\n    def unit(self): return {unit}\n{heir}") for unit in (1, 2)]
    assert name_of(made[0]) != name_of(made[1])


def test_what_a_library_provides_goes_by_its_name_and_what_it_was_made_with():
    assert name_of(torch.nn.functional.mse_loss) != name_of(torch.nn.functional.l1_loss)
    assert name_of(torch.nn.MSELoss()) == name_of(torch.nn.MSELoss())
    assert name_of(torch.nn.MSELoss()) != name_of(torch.nn.L1Loss())
    assert name_of(torch.nn.HuberLoss(delta=1.0)) != name_of(torch.nn.HuberLoss(delta=2.0))
    assert name_of(latent_mse) == name_of(latent_mse)
    library = types.ModuleType("installed")  # without a file, as what is built in
    exec("def make(number):\n    def loss(*_): return number\n    return loss\n", vars(library))
    sys.modules["installed"] = library
    try:
        assert name_of(library.make(1)) == name_of(library.make(1)) != name_of(library.make(2))
    finally:
        del sys.modules["installed"]


def test_a_cache_may_be_left_out():
    class Remembering:
        def __init__(self):
            self.seen = {}

        def __call__(self, student, teacher, run):
            return self.seen.setdefault(id(run), 1.0)

        def __getstate__(self):
            return {}

    used = Remembering()
    used(None, None, object())
    assert name_of(used) == name_of(Remembering())


def test_the_names_of_ours_are_their_names():
    assert [name_of(name) for name in ("latent", "pixel")] == ["latent", "pixel"]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: threading.Lock(), "lock"),
        (lambda: (number for number in range(3)), "generator"),
        (lambda: sys.__stdout__, "TextIOWrapper"),
    ],
    ids=["lock", "generator", "file"],
)
def test_what_cannot_be_named_is_refused_with_a_sentence(make, kind):
    thing = make()
    for given in (lambda *_: thing, functools.partial(closure(1.0), [thing]), Callable({"deep": [thing]})):
        with pytest.raises(SearchError) as caught:
            name_of(given)
        text = str(caught.value)
        assert f"holds a value of type {kind}, which has no lasting name" in text
        assert text.endswith("or search without a ledger.")
        assert "\n" not in text
