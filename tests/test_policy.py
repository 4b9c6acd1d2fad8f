from __future__ import annotations

import copy
import json
import os
import pickle
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from budcache import BudcacheError, FileError, Ladder, Mask, Origin, Policy, PolicyError, Quality, Refined
from budcache.chosen import load, parse
from budcache.events import Scored
from budcache.policy import Searched
from budcache.rows import Features, Row

GOLDEN = Path(__file__).parent / "golden"
POLICY_FILE, LADDER_FILE = GOLDEN / "policy-v2.json", GOLDEN / "ladder-v2.json"
OLD_POLICY_FILE, OLD_LADDER_FILE = GOLDEN / "policy-v1.json", GOLDEN / "ladder-v1.json"  # read for ever
GOLDEN_FILES = [POLICY_FILE, LADDER_FILE, OLD_POLICY_FILE, OLD_LADDER_FILE]
POLICY, LADDER, OLD_POLICY, OLD_LADDER = (json.loads(file.read_bytes()) for file in GOLDEN_FILES)
ROWS_FILE = GOLDEN / "rows-v2.json"
ROWS_POLICY = json.loads(ROWS_FILE.read_bytes())
KIND = {"policy": POLICY, "ladder": LADDER}


def refusal(action, *arguments, kind=PolicyError, **named) -> str:
    """The text of the refusal: of this kind, nothing wider or narrower, and one sentence on one line."""
    with pytest.raises(kind) as caught:
        action(*arguments, **named)
    assert type(caught.value) is kind
    return sentence(caught.value)


def sentence(error: BudcacheError) -> str:
    text = str(error)
    assert text.isprintable()
    assert len(text) < 400
    assert text[-1] in ".?"
    return text


def with_value(data, path, value):
    """A copy of `data` in which `value` stands at `path`."""
    if not path:
        return value
    data = copy.deepcopy(data)
    at(data, path[:-1])[path[-1]] = value
    return data


def at(data, path):
    for key in path:
        data = data[key]
    return data


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    """A folder for all examples of a property."""
    return tmp_path_factory.mktemp("policies")


@pytest.fixture
def read(tmp_path):
    """Load what is given, text, bytes or JSON, from a file."""
    path = tmp_path / "some.policy.json"

    def load_content(content):
        if not isinstance(content, bytes | str):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return load(path)

    load_content.refusal = lambda content: naming(path, refusal(load_content, content))
    return load_content


def naming(path, text) -> str:
    assert str(path) in text
    return text.replace(str(path), "")


# What a field may hold, as names of samples, and random values of it.

SAMPLES = {
    "null": None,
    "true": True,
    "integer": 3,
    "negative": -3,
    "fraction": 1.5,
    "text": "x",
    "list": [],
    "numbers": [1.5],
    "object": {},
}
letters = st.text(max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | numbers | letters,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(letters, inner, max_size=3),
    max_leaves=6,
)
TEXT = {"null", "text"}, st.none() | letters
COUNT = {"null", "integer"}, st.none() | st.integers(0, 10**15)
NUMBER = {"null", "integer", "negative", "fraction"}, st.none() | numbers
SEED = {"null", "integer", "negative"}, st.none() | st.integers(-(2**63), 2**64 - 1)
NAMES = {"list"}, st.lists(letters, max_size=3)
SETTINGS = {"object"}, st.dictionaries(letters, plain, max_size=3)
RANGES = {"object"}, st.dictionaries(st.sampled_from(["height", "guidance"]), st.tuples(numbers, numbers), max_size=2)
VERSIONS = {"object"}, st.dictionaries(letters, letters, max_size=3)
LEVELS = {"list"}, st.just(())  # as many as a policy has steps, so that they come with it

ORIGIN_FIELDS = {
    "model": TEXT,
    "pipeline": TEXT,
    "denoiser": TEXT,
    "weights": TEXT,
    "adapters": NAMES,
    "scheduler": TEXT,
    "scheduler_settings": SETTINGS,
    "levels": LEVELS,
    "height": COUNT,
    "width": COUNT,
    "frames": COUNT,
    "guidance": NUMBER,
    "true_guidance": NUMBER,
    "ranges": RANGES,
    "prompts": COUNT,
    "prompts_hash": TEXT,
    "seed": SEED,
    "strategy": TEXT,
    "teacher_steps": COUNT,
    "switch": COUNT,
    "calls": COUNT,
    "versions": VERSIONS,
}
QUALITY_FIELDS = {
    "calibration_loss": NUMBER,
    "loss": NUMBER,
    "psnr": NUMBER,
    "psnr_error": NUMBER,
    "psnr_p5": NUMBER,
    "psnr_worst": NUMBER,
    "psnr_plain": NUMBER,
    "psnr_combined": NUMBER,
    "samples": COUNT,
    "used_to_choose": ({"null", "true"}, st.none() | st.booleans()),
    "used_to_fit": ({"null", "true"}, st.none() | st.booleans()),
}
REFINED_FIELDS = {"how": ({"text"}, letters), "prompts": COUNT, "calls": COUNT, "gain": NUMBER}
ALLOWED = {  # every field of every file, by its path
    **{("policy", name): set() for name in ("kind", "version", "mask", "reuse", "weights")},
    **{("policy", name): {"null"} for name in ("sigmas", "guided")},
    **{("policy", name): {"null", "object"} for name in ("origin", "quality")},
    **{("policy", "origin", name): allowed for name, (allowed, _) in ORIGIN_FIELDS.items()},
    **{("policy", "quality", name): allowed for name, (allowed, _) in QUALITY_FIELDS.items()},
    ("policy", "refined"): {"list"},
    **{("policy", "refined", 1, name): allowed for name, (allowed, _) in REFINED_FIELDS.items()},
    **{("ladder", name): set() for name in ("kind", "version", "rungs")},
    **{("ladder", "rungs", 1, name): set() for name in ("kind", "version", "mask", "reuse")},
}

origins = st.builds(Origin, **{name: values for name, (_, values) in ORIGIN_FIELDS.items()})
qualities = st.builds(Quality, **{name: values for name, (_, values) in QUALITY_FIELDS.items()})
refinements = st.builds(Refined, **{name: values for name, (_, values) in REFINED_FIELDS.items()})


@st.composite
def policies(draw, steps=None, budget=None):
    steps = steps or draw(st.integers(1, 12))
    budget = budget or draw(st.integers(1, steps))
    later = draw(st.permutations(range(1, steps)))[: budget - 1]
    reuse = draw(st.sampled_from(["output", "residual"]))
    levels = st.lists(st.floats(0, 100), min_size=steps + 1, max_size=steps + 1, unique=True)
    falling = levels.map(lambda values: sorted(values, reverse=True))
    rows = st.tuples(*(st.lists(numbers, min_size=1, max_size=min(row + 1, 3)) for row in range(budget)))
    return Policy(
        mask=Mask.of(steps, [0, *later]),
        reuse=reuse,
        sigmas=draw(st.none() | falling),
        weights=draw(st.none() | rows) if reuse == "output" else None,
        origin=draw(st.none() | origins | st.builds(Origin, levels=falling)),
        quality=draw(st.none() | qualities),
        refined=draw(st.lists(refinements, max_size=3)),
    )


@st.composite
def ladders(draw):
    steps = draw(st.integers(1, 8))
    budgets = draw(st.lists(st.integers(1, steps), min_size=1, unique=True))
    return Ladder.of([draw(policies(steps, budget)) for budget in budgets])


bare_ladders = st.sets(st.integers(1, 8), min_size=1).map(
    lambda budgets: Ladder.of([Policy(mask=Mask.uniform(8, budget)) for budget in budgets])
)


# Files and values are the same thing.


@pytest.mark.parametrize(
    ("file", "budcache_version", "newer"),
    [
        (
            *(POLICY_FILE, "0.2.0"),
            {
                "psnr_error": 0.75,
                "psnr_plain": 34.5,
                "psnr_combined": 38.75,
                "used_to_choose": True,
                "used_to_fit": False,
            },
        ),
        (OLD_POLICY_FILE, "0.1.0", {}),
    ],
    ids=["version 2", "version 1"],
)
def test_golden_policy(file, budcache_version, newer):
    policy = load(file)
    assert isinstance(policy, Policy)
    assert (policy.kind, policy.version) == ("policy", 2)
    assert policy.mask == Mask.of(10, [0, 1, 3, 6, 8])
    assert (policy.budget, policy.steps, policy.reuse) == (5, 10, "output")
    assert policy.sigmas == (1.0, 0.9659, 0.9265, 0.8804, 0.8258, 0.7601, 0.6796, 0.5785, 0.4478, 0.2725, 0.0)
    assert policy.weights == ((1.0,), (1.125, -0.125), (1.5, -0.625, 0.125), (1.3125, -0.3125), (0.96875,))
    assert policy.rows is None
    assert (policy.guided is not None) == bool(newer)
    if policy.guided:
        assert policy.guided[1] == Row(outputs=(1.125, -0.125), branch=(-0.25, 0.25), noise=0.015625)
    assert dict(policy.origin) == {
        "model": "black-forest-labs/FLUX.1-dev",
        "pipeline": "FluxPipeline",
        "denoiser": "FluxTransformer2DModel",
        "weights": "9f86d081884c7d65",
        "adapters": ("watercolour", "détail"),
        "scheduler": "FlowMatchEulerDiscreteScheduler",
        "scheduler_settings": {
            "shift": 3.0,
            "use_dynamic_shifting": True,
            "max_image_seq_len": 4096,
            "time_shift_type": "exponential",
            "shift_terminal": None,
        },
        "levels": policy.sigmas if newer else (),
        "height": 1024,
        "width": 768,
        "frames": 1,
        "guidance": 3.5,
        "true_guidance": 1.5 if newer else None,
        "ranges": {"height": (512.0, 1024.0)} if newer else {},
        "prompts": 8,
        "prompts_hash": "2c26b46b68ffc68f",
        "seed": -7,
        "strategy": "ladder",
        "teacher_steps": 224,
        "switch": 4 if newer else None,
        "calls": 1664,
        "versions": {"budcache": budcache_version, "diffusers": "0.36.0", "torch": "2.13.0+cpu"},
    }
    assert dict(policy.quality) == {
        "calibration_loss": 0.00021,
        "loss": 0.00034,
        "psnr": 39.9,
        "psnr_error": None,
        "psnr_p5": 35.25,
        "psnr_worst": 33.5,
        "psnr_plain": None,
        "psnr_combined": None,
        "samples": 32,
        "used_to_choose": None,
        "used_to_fit": None,
        **newer,
    }
    assert policy.refined == (
        Refined(how="fit", prompts=32, calls=1056, gain=4.75),
        Refined(how="align, joint", prompts=100, calls=9600, gain=0.125),
    )


def test_golden_rows(tmp_path):
    policy = load(ROWS_FILE)
    first, second, last = policy.rows
    assert (first, second) == (Row(outputs=[1.0]), Row(outputs=(1.125, -0.125), noise=0.015625))
    assert last.features.slopes[-1] == (0.0, 0.0, 0.015625)
    assert policy.reuse_text == "blend 3+ f"
    assert json.loads(policy.save(tmp_path / "again.json").read_text()) == ROWS_POLICY


def test_a_policy_of_version_1_is_written_as_one_of_version_2(tmp_path):
    """All that it said is kept; only a figure that nothing ever filled is gone."""
    written = json.loads(load(OLD_POLICY_FILE).save(tmp_path / "new.json").read_bytes())
    quality = {name: value for name, value in OLD_POLICY["quality"].items() if name != "ssim"}
    assert written == {**OLD_POLICY, "version": 2, "quality": quality}


@pytest.mark.parametrize(("data", "file"), [(POLICY, POLICY_FILE), (OLD_POLICY, OLD_POLICY_FILE)], ids=["2", "1"])
def test_a_policy_without_refinement_is_read_and_written_without(data, file, tmp_path):
    bare = {name: value for name, value in data.items() if name != "refined"}
    policy = parse(bare)
    assert policy == load(file).model_copy(update={"refined": ()})
    assert "refined" not in json.loads(policy.save(tmp_path / "bare.json").read_bytes())


@pytest.mark.parametrize(
    ("file", "first", "last"),
    [
        (LADDER_FILE, Quality(loss=0.0125, psnr=24.5, psnr_error=2.0), Quality(samples=16, used_to_choose=False)),
        (OLD_LADDER_FILE, Quality(loss=0.0125, psnr=24.5), Quality(samples=16)),
    ],
    ids=["version 2", "version 1"],
)
def test_golden_ladder(file, first, last):
    ladder = load(file)
    assert isinstance(ladder, Ladder)
    assert (ladder.kind, ladder.version, ladder.steps, ladder.budgets) == ("ladder", 2, 8, (2, 4, 6))
    blended, residual, aligned = ladder
    assert blended == Policy(mask="10001000", weights=[[1.0], [1.25, -0.25]], quality=first, origin=None)
    assert residual == Policy(
        mask="11001010",
        reuse="residual",
        origin=Origin(model="tiny-flux", seed=0, strategy="anneal", versions={"torch": "2.13.0"}),
    )
    assert aligned == Policy(
        mask="11101101",
        sigmas=(1.0, 0.9375, 0.8125, 0.75, 0.5, 0.375, 0.25, 0.125, 0.03125),
        origin=Origin(),
        quality=last,
    )


def test_a_field_of_version_1_is_none_of_version_2(read):
    assert "unknown field 'quality.ssim'" in read.refusal(with_value(POLICY, ("quality", "ssim"), 0.9))
    assert "unknown field 'colour'" in read.refusal({**OLD_POLICY, "colour": "red"})


@pytest.mark.parametrize("file", GOLDEN_FILES, ids=lambda file: file.stem)
def test_golden_files_survive_saving(file, tmp_path):
    found = load(file)
    assert load(found.save(tmp_path / "again.json")) == found


def test_the_golden_policy_has_every_field():
    assert set(POLICY) | set(ROWS_POLICY) == set(Policy.model_fields)  # weights and rows exclude each other
    assert set(ROWS_POLICY["rows"][-1]) | {"branch"} == set(Row.model_fields)
    assert set(ROWS_POLICY["rows"][-1]["features"]) == set(Features.model_fields)
    assert set(POLICY["origin"]) == set(Origin.model_fields) == set(ORIGIN_FIELDS)
    assert set(POLICY["quality"]) == set(Quality.model_fields) == set(QUALITY_FIELDS)
    assert all(set(line) == set(Refined.model_fields) == set(REFINED_FIELDS) for line in POLICY["refined"])
    assert set(LADDER) == set(Ladder.model_fields)


@given(policies() | ladders())
def test_any_value_survives_saving(scratch, value):
    file = value.save(scratch / "value.json")
    assert load(file) == value
    written = file.read_bytes()
    load(file).save(file)
    assert file.read_bytes() == written


@given(policies())
def test_a_policy_file_is_a_ladder_of_one_rung(scratch, policy):
    file = policy.save(scratch / "policy.json")
    assert Policy.load(file) == policy
    assert Ladder.load(file) == Ladder(rungs=(policy,))


@given(st.lists(st.integers(-5, 5) | letters, max_size=4).map(str) | st.just("[ 1,   2 ]\n[\n  3\n]"))
def test_text_that_looks_like_rows_of_numbers_is_left_alone(scratch, text):
    policy = Policy(mask="1", origin=Origin(model=text, adapters=[text]))
    assert load(policy.save(scratch / "rows.json")) == policy


def test_a_ladder_file_is_not_one_policy():
    text = naming(LADDER_FILE, refusal(Policy.load, LADDER_FILE))
    assert "2, 4, 6" in text
    assert "--budget 2 on the command line" in text


def test_files_are_for_people_too(tmp_path):
    text = load(POLICY_FILE).save(tmp_path / "a.json").read_text(encoding="utf-8")
    assert '"sigmas": [1.0, 0.9659, 0.9265, ' in text
    assert "    [1.125, -0.125]," in text
    assert "null" not in Policy(mask="10").save(tmp_path / "b.json").read_text(encoding="utf-8")


# Ladders.


def test_a_ladder_is_indexed_by_budget():
    ladder = load(LADDER_FILE)
    assert [ladder[budget] for budget in (2, 4, 6)] == list(ladder) == list(ladder.rungs)
    assert len(ladder) == 3
    assert [budget for budget in range(10) if budget in ladder] == [2, 4, 6]
    assert "4" not in ladder
    assert None not in ladder


@given(bare_ladders, st.integers(-2, 10))
def test_at_most_takes_the_dearest_affordable_rung(ladder, budget):
    assume(budget >= ladder.budgets[0])
    assert ladder.at_most(budget).budget == max(b for b in ladder.budgets if b <= budget)


@given(bare_ladders, st.randoms())
def test_a_ladder_sorts_its_policies(ladder, random):
    rungs = list(ladder)
    random.shuffle(rungs)
    assert Ladder.of(rungs) == Ladder.of(iter(rungs)) == ladder


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda ladder: ladder[5], ["5 calls", "2, 4, 6", "nearest below has 4"]),
        (lambda ladder: ladder[100], ["100 calls", "2, 4, 6", "nearest below has 6"]),
        (lambda ladder: ladder[1], ["1 calls", "2, 4, 6", "Choose one of them"]),
        (lambda ladder: ladder.at_most(1), ["at most 1 calls", "smallest costs 2"]),
        (lambda ladder: ladder.at_most(-1), ["at most -1 calls", "smallest costs 2"]),
    ],
)
def test_a_missing_rung_is_refused_with_what_there_is(ask, says):
    text = refusal(ask, load(LADDER_FILE))
    assert [part for part in says if part not in text] == []


def test_a_tall_ladder_is_refused_briefly(tmp_path):
    ladder = Ladder.of([Policy(mask=Mask.uniform(1000, budget)) for budget in range(1, 1001)])
    assert "1, 2, 3" in refusal(lambda: ladder[1001])
    assert "998, 999, 1000" in refusal(Policy.load, ladder.save(tmp_path / "tall.json"))


# Values are sound from the start and stay so.


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Policy(), "'mask'"),
        (lambda: Policy(mask=None), "mask"),
        (lambda: Policy(mask=1011), "mask"),
        (lambda: Policy(mask=b"1011"), "mask"),
        (lambda: Policy(mask="011"), "'011'"),
        (lambda: Policy(mask="1x1"), "'x'"),
        (lambda: Policy(mask="1" * 1001), "1001"),
        (lambda: Policy(mask="11", reuse="both"), "'both'"),
        (lambda: Policy(mask="11", kind="ladder"), "'ladder'"),
        (lambda: Policy(mask="11", steps=2), "'steps'"),
        (lambda: Policy(mask="11", version=3), "version 3"),
        (lambda: Policy(mask="11", version=10**5000), "version"),
        (lambda: Policy(mask="11", sigmas=[10**5000, 1, 0]), "sigmas[0]"),
        (lambda: Policy(mask="11", sigmas=[1, float("nan"), 0]), "sigmas[1] is nan"),
        (lambda: Policy(mask="11", sigmas=[float("inf"), 1, 0]), "sigmas[0] is inf"),
        (lambda: Policy(mask="11", sigmas=["1", 0.5, 0]), "sigmas[0] is '1'"),
        (lambda: Policy(mask="11", sigmas=[True, 0.5, 0]), "sigmas[0] is True"),
        (lambda: Policy(mask="11", sigmas=0.5), "sigmas is 0.5"),
        (lambda: Policy(mask="11", origin="FLUX"), "origin is 'FLUX'"),
        (lambda: Policy(mask="11", origin={"seed": 2**64}), "origin.seed"),
        (lambda: Policy(mask="11", origin=Quality()), "origin"),
        (lambda: Origin(height=-1), "height is -1"),
        (lambda: Origin(model="x" * 5000), "model"),
        (lambda: Origin(model=b"FLUX"), "b'FLUX'"),
        (lambda: Origin(colour="red"), "'colour'"),
        (lambda: Origin(scheduler_settings={"betas": object()}), "scheduler_settings"),
        (lambda: Origin(scheduler_settings={"betas": {1: 2}}), "scheduler_settings"),
        (lambda: Origin(scheduler_settings={"shift": float("inf")}), "inf"),
        (lambda: Origin(versions={"torch": 2}), "versions.torch is 2"),
        (lambda: Origin(versions={"to\nrch": 2}), r"versions.'to\nrch' is 2"),
        (lambda: Quality(psnr="40 dB"), "psnr is '40 dB'"),
        (lambda: Quality(samples=1.5), "samples is 1.5"),
        (lambda: Ladder(), "'rungs'"),
        (lambda: Ladder(rungs=()), "rungs"),
        (lambda: Ladder.of([]), "rungs"),
        (lambda: Ladder(rungs=[None]), "rungs[0] is None"),
        (lambda: Ladder(rungs=[Policy(mask="11"), Policy(mask="10")]), "2 is followed by 1"),
        (lambda: Ladder.of([Policy(mask="11"), Policy(mask="11")]), "2 is followed by 2"),
        (lambda: Ladder.of([Policy(mask="100"), Policy(mask="11")]), "3 and 2"),
        (lambda: Ladder(rungs=[{"mask": "11", "sigmas": [1, 0.5, 0.75]}]), "rungs[0]: sigmas must fall"),
        (lambda: Ladder(rungs=[{"mask": "11"}, {"mask": "01"}]), "rungs[1]: mask '01'"),
    ],
)
def test_a_wrong_value_cannot_be_made(make, says):
    assert says in refusal(make)


def test_arrays_are_refused_on_one_line():
    np = pytest.importorskip("numpy")
    assert "sigmas" in refusal(Policy, mask="11", sigmas=np.ones((3, 2, 2)))


@pytest.mark.parametrize("value", [load(POLICY_FILE), load(LADDER_FILE), Origin(), Quality()], ids=type)
def test_values_are_frozen(value):
    before = value.model_dump()
    for name in type(value).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(value, name, None)
        with pytest.raises(ValidationError, match="frozen"):
            delattr(value, name)
    assert value.model_dump() == before


def test_values_do_not_share_their_defaults():
    Origin().versions["torch"] = "2"
    assert Origin().versions == {}


# Files of wrong content.


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("path", ALLOWED, ids=lambda path: ".".join(map(str, path)))
def test_every_field_takes_only_its_type(read, path, sample):
    kind, *inside = path
    data = with_value(KIND[kind], inside, SAMPLES[sample])
    if sample in ALLOWED[path]:
        found = read(data)
        for field in inside:
            found = found[field] if isinstance(field, int) else getattr(found, field)
        assert found in {"list": [()], "object": [{}, Origin(), Quality()]}.get(sample, [SAMPLES[sample]])
    else:
        assert inside[-1] in read.refusal(data)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("policy", ()),
        ("policy", ("origin",)),
        ("policy", ("quality",)),
        ("policy", ("refined", 0)),
        ("ladder", ()),
        ("ladder", ("rungs", 0)),
        ("ladder", ("rungs", 1, "origin")),
        ("ladder", ("rungs", 2, "quality")),
    ],
)
@pytest.mark.parametrize(("name", "value"), [("steps", 1_000_000_000), ("Mask", "1"), ("", None), ("x" * 9999, [])])
def test_unknown_fields_are_refused_at_every_level(read, kind, path, name, value):
    text = read.refusal(with_value(KIND[kind], (*path, name), value))
    assert "unknown field" in text
    assert name[:20] in text


@pytest.mark.parametrize("path", [("policy",), ("ladder",), ("ladder", "rungs", 1)], ids=str)
@pytest.mark.parametrize("version", [3, 10**9, 10**4000])
def test_a_newer_version_asks_for_an_upgrade(read, path, version):
    kind, *inside = path
    text = read.refusal(with_value(KIND[kind], (*inside, "version"), version))
    assert f"version {str(version)[:30]}" in text
    assert "pgrade budcache" in text


def test_a_newer_version_may_look_quite_different(read):
    assert "pgrade budcache" in read.refusal({"version": 3, "kind": "tree", "masks": {}})


@pytest.mark.parametrize("path", [("policy",), ("ladder",), ("ladder", "rungs", 1)], ids=str)
@pytest.mark.parametrize("version", ["1", 1.0, 2.0, True, 0, -1, -(10**4000), [1], {}])
def test_a_version_is_a_whole_number_from_one(read, path, version):
    kind, *inside = path
    text = read.refusal(with_value(KIND[kind], (*inside, "version"), version))
    assert "version" in text
    assert str(version)[:30] in text


@pytest.mark.parametrize("field", ["kind", "version"])
def test_what_a_file_is_must_be_said(read, field):
    assert field in read.refusal({key: value for key, value in POLICY.items() if key != field})


LEVELS, ROWS = POLICY["sigmas"], POLICY["weights"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sigmas": LEVELS[:-1]}, "11 sigmas, got 10"),
        ({"sigmas": [2.0, *LEVELS]}, "11 sigmas, got 12"),
        ({"sigmas": []}, "11 sigmas, got 0"),
        ({"sigmas": [0.5] * 100_000}, "sigmas"),
        ({"sigmas": [[]] * 100_000}, "sigmas[0]"),
        ({"sigmas": [LEVELS[0], *LEVELS[:-1]]}, "sigmas[0] = 1.0 is followed by 1.0"),
        ({"sigmas": LEVELS[::-1]}, "sigmas[0] = 0.0 is followed by 0.2725"),
        ({"sigmas": [*LEVELS[:5], 0.8258000000000001, *LEVELS[6:]]}, "0.8258000000000001"),
        ({"sigmas": [*LEVELS[:-1], -0.25]}, "-0.25, below zero"),
        ({"sigmas": [*LEVELS[:-1], None]}, "sigmas[10] is None"),
        ({"sigmas": [10**400, *LEVELS[1:]]}, "sigmas[0]"),
        ({"weights": ROWS[:-1]}, "5 rows of weights, one a step, got 4"),
        ({"weights": [*ROWS, [1.0]]}, "5 rows of weights, one a step, got 6"),
        ({"weights": []}, "5 rows of weights, one a step, got 0"),
        ({"weights": [[1.0, 0.0], *ROWS[1:]]}, "weights[0] has 2 values"),
        ({"weights": [*ROWS[:2], [], *ROWS[3:]]}, "weights[2] has 0 values"),
        ({"weights": [*ROWS[:2], [1.0] * 4, *ROWS[3:]]}, "weights[2] has 4 values"),
        ({"weights": [1.0] * 5}, "weights[0]"),
        ({"weights": [[["1.0"]], *ROWS[1:]]}, "weights[0][0]"),
        ({"weights": [[[]] * 100_000] * 5}, "weights[0]"),
        ({"reuse": "residual"}, "weights"),
        ({"reuse": "Output"}, "'Output'"),
        ({"mask": ""}, "got none"),
        ({"mask": "1" * 1001}, "1001 steps"),
        ({"mask": "1" * 1_000_000}, "1000000 steps"),
        ({"mask": "1101001010 "}, "' '"),
        ({"origin": {"adapters": [1] * 100_000}}, "origin.adapters[0]"),
        ({"origin": {"height": 10**16}}, "origin.height"),
        ({"origin": {"versions": {"x" * 5000: 1}}}, "origin.versions.xxx"),
        ({"origin": {"versions": {"a\nb": 1}}}, r"origin.versions.'a\nb'"),
        ({"origin": {"model": "\ud800"}}, r"'\ud800'"),
        ({"\ud800": 1}, r"\ud800"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_must_be_right_and_fit_together(read, change, says):
    assert says in read.refusal({**POLICY, **change})


def test_a_blend_looks_back_on_128_outputs_at_most(read):
    rows = [[1.0]] * 139
    long = {"kind": "policy", "version": 1, "mask": "1" * 140}
    assert read({**long, "weights": [*rows, [1.0] * 128]}).weights[-1] == (1.0,) * 128
    assert "weights[139] has 129 values" in read.refusal({**long, "weights": [*rows, [1.0] * 129]})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ([], "rungs"),
        ([LADDER["rungs"][1], LADDER["rungs"][0]], "budgets must rise from rung to rung, but 4 is followed by 2"),
        ([LADDER["rungs"][0], LADDER["rungs"][0]], "but 2 is followed by 2"),
        ([LADDER["rungs"][0], POLICY], "there are 8 and 10"),
        ([LADDER], "rungs[0]"),
        ([{}] * 100_000, "rungs"),
        ([None], "rungs[0] is None"),
    ],
    ids=["none", "falling", "twins", "other steps", "ladder in a ladder", "many", "null"],
)
def test_rungs_must_fit_together(read, change, says):
    assert says in read.refusal({**LADDER, "rungs": change})


# Files that are not even that.

BARE = '{"kind": "policy", "version": 1, "mask": "10"%s}'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(content, says, id=name)
        for name, content, says in [
            ("empty", b"", "line 1"),
            ("blank", b" \n\n ", "line 3"),
            ("list", b"[]", "got list"),
            ("number", b"1", "got int"),
            ("null", b"null", "got NoneType"),
            ("text", b'"policy"', "got str"),
            ("object", b"{}", "version"),
            ("pickle", b"\x80\x04\x95\x10\x00\x00\x00", "not text"),
            ("latin-1", '{"kind": "é"}'.encode("latin-1"), "not text"),
            ("utf-16", json.dumps(POLICY).encode("utf-16"), "not text"),
            ("NaN", BARE % ', "sigmas": [1, NaN, 0]', "NaN"),
            ("Infinity", BARE % ', "sigmas": [Infinity, 1, 0]', "Infinity"),
            ("-Infinity", BARE % ', "quality": {"loss": -Infinity}', "-Infinity"),
            ("1e999", BARE % ', "sigmas": [1e999, 1, 0]', "inf"),
            ("1e999 in settings", BARE % ', "origin": {"scheduler_settings": {"shift": [1e999]}}', "inf"),
            ("1e999 version", b'{"version": 1e999, "kind": "policy"}', "version"),
            ("10,000 digits", BARE % f', "origin": {{"seed": {"9" * 10_000}}}', "too large"),
            ("4,000 digits", BARE % f', "origin": {{"seed": {"9" * 4_000}}}', "origin.seed"),
            ("twins", BARE % ', "mask": "11"', "'mask' twice"),
            ("twins inside", BARE % ', "origin": {"seed": 1, "seed": 1}', "'seed' twice"),
            ("two values", (BARE % "") * 2, "Extra data"),
            ("single quotes", str(POLICY), "line 1, column 2"),
            ("comma at the end", BARE % ",", "line 1"),
            ("100,000 brackets", "[" * 100_000, "too deep"),
            ("100,000 closed brackets", "[" * 100_000 + "]" * 100_000, "too deep"),
            ("100,000 objects", '{"a":' * 100_000, "too deep"),
            ("9 MB", b" " * 9_000_000, "8000000 bytes"),
        ]
    ],
)
def test_other_files_are_refused(read, content, says):
    assert says in read.refusal(content)


@pytest.mark.parametrize("depth", [9, 100, 300, 900])
@pytest.mark.parametrize(
    "field", ["mask", "sigmas", "weights", "version", "kind", "more", "origin", "scheduler_settings"]
)
def test_deep_values_are_refused_wherever_they_stand(read, field, depth):
    deep = "[" * depth + "]" * depth
    if field == "scheduler_settings":
        field, deep = "origin", f'{{"scheduler_settings": {{"deep": {deep}}}}}'
    fields = {name: json.dumps(value) for name, value in POLICY.items()} | {field: deep}
    inside = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    read.refusal(f"{{{inside}}}")


@pytest.mark.parametrize("file", [POLICY_FILE, LADDER_FILE], ids=lambda file: file.stem)
def test_a_file_cut_anywhere_is_refused(read, file):
    content = file.read_bytes().rstrip()
    assert read(content) == load(file)
    for end in range(len(content)):
        read.refusal(content[:end])


def test_a_byte_order_mark_is_no_matter(read):
    assert read(b"\xef\xbb\xbf" + POLICY_FILE.read_bytes()) == load(POLICY_FILE)


def test_places_without_a_file(tmp_path):
    assert "folder" in naming(tmp_path, refusal(load, tmp_path, kind=FileError))
    missing = tmp_path / "no" / "such.json"
    assert "there is no file" in naming(missing, refusal(load, missing, kind=FileError))
    under_a_file = POLICY_FILE / "such.json"
    assert "cannot be read" in naming(under_a_file, refusal(load, under_a_file, kind=FileError))
    assert "cannot be read" in refusal(load, tmp_path / ("long" * 70), kind=FileError)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "is a pipe" in naming(tmp_path / "pipe", refusal(load, tmp_path / "pipe", kind=FileError))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_an_endless_file_is_not_read_to_the_end():
    assert "bytes" in naming("/dev/zero", refusal(load, "/dev/zero"))


@pytest.mark.parametrize("data", [None, 3, "1011", [], [POLICY]], ids=repr)
def test_parse_takes_an_object(data):
    assert type(data).__name__ in refusal(parse, data)


# Whatever is in a file, it is read well or refused well.

scrawl = st.text(st.characters(), max_size=5)  # lone surrogates too
mess = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | scrawl,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scrawl, inner, max_size=3),
    max_leaves=5,
)


def places(data, path=()):
    yield path
    if isinstance(data, dict | list):
        for key, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from places(inner, (*path, key))


@st.composite
def mutants(draw):
    """A golden file's JSON with a few subtrees replaced, moved, added or taken away."""
    data = copy.deepcopy(draw(st.sampled_from([POLICY, LADDER, OLD_POLICY, OLD_LADDER])))
    for _ in range(draw(st.integers(1, 3))):
        everywhere = list(places(data))
        path = draw(st.sampled_from(everywhere))
        new = draw(mess | st.sampled_from(everywhere).map(lambda other: copy.deepcopy(at(data, other))))  # noqa: B023
        inside = at(data, path)
        match draw(st.sampled_from(["replace", "add", "delete"])):
            case "add" if isinstance(inside, dict):
                inside[draw(st.text(max_size=3) | st.sampled_from(sorted(ORIGIN_FIELDS)))] = new
            case "add" if isinstance(inside, list):
                inside.insert(draw(st.integers(0, len(inside))), new)
            case "delete" if path:
                del at(data, path[:-1])[path[-1]]
            case _:
                data = with_value(data, path, new)
    return json.dumps(data).encode()


@st.composite
def damaged(draw):
    """A golden file's bytes with a few of them changed, lost or doubled."""
    content = bytearray(draw(st.sampled_from(GOLDEN_FILES)).read_bytes())
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.integers(0, 4)))
        content[begin:end] = draw(st.binary(max_size=4) | st.sampled_from([b'"', b"{", b"]", b",", b"9", b"-", b"e9"]))
    return bytes(content)


@settings(max_examples=500)
@given(mutants() | mess.map(lambda data: json.dumps(data).encode()))
def test_wrong_fields_are_read_well_or_refused_well(scratch, content):
    read_well_or_refused_well(scratch, content)


@settings(max_examples=500)
@given(damaged() | st.binary(max_size=40))
def test_wrong_bytes_are_read_well_or_refused_well(scratch, content):
    read_well_or_refused_well(scratch, content)


def read_well_or_refused_well(scratch, content):
    file = scratch / "fuzz.json"
    file.write_bytes(content)
    try:
        found = load(file)
    except PolicyError as error:
        naming(file, sentence(error))
    else:
        assert isinstance(found, Policy | Ladder)
        assert load(found.save(scratch / "again.json")) == found


# Saving is all or nothing.


def test_saving_makes_folders_and_replaces_files(tmp_path):
    file = tmp_path / "a" / "b" / "c.json"
    first, second = Policy(mask="10"), Policy(mask="11")
    assert first.save(file) == file
    assert second.save(str(file)) == file
    assert load(file) == second
    assert names(file.parent) == ["c.json"]


@pytest.mark.skipif(os.name != "posix", reason="file modes are of POSIX")
def test_a_saved_file_may_be_shared(tmp_path):
    assert Policy(mask="1").save(tmp_path / "a.json").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("reason", [OSError(28, "No space left on device"), PermissionError(1, "Not permitted")])
def test_a_failed_save_leaves_what_was_there(tmp_path, monkeypatch, reason):
    file = Policy(mask="10").save(tmp_path / "a.json")
    monkeypatch.setattr(Path, "replace", failing(reason))
    text = naming(file, refusal(Policy(mask="11").save, file, kind=FileError))
    assert reason.strerror in text
    assert load(file) == Policy(mask="10")
    assert names(tmp_path) == ["a.json"]


def test_an_interrupted_save_leaves_what_was_there(tmp_path, monkeypatch):
    file = Policy(mask="10").save(tmp_path / "a.json")
    monkeypatch.setattr(Path, "replace", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        Policy(mask="11").save(file)
    assert load(file) == Policy(mask="10")
    assert names(tmp_path) == ["a.json"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def failing(reason):
    def fail(*_, **__):
        raise reason

    return fail


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="cannot be written: it is a folder or a device"):
        Policy(mask="10").save(pipe)
    assert pipe.is_fifo()


@pytest.mark.parametrize("where", ["folder", "folder/file/a.json", "folder/" + "long" * 70, "a\0.json"])
def test_places_that_cannot_be_written(tmp_path, where):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("kept")
    with pytest.raises(FileError, match="cannot be written"):
        Policy(mask="1").save(tmp_path / where)
    assert (names(tmp_path), names(folder)) == (["folder"], ["file"])
    assert (folder / "file").read_text() == "kept"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_is_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    refusal(Policy(mask="1").save, folder / "a.json", kind=FileError)
    assert names(folder) == []


# For people to read.

MEASURED = Quality(psnr=31.26, psnr_error=0.84, samples=6, used_to_choose=True)
LEARNED = Policy(
    mask="110",
    weights=((1.0,), (0.9, 0.1)),
    sigmas=(1.0, 0.6, 0.2, 0.0),
    quality=MEASURED,
    origin=Origin(model="<script>'a' & b</script>"),
)


def test_policies_print_themselves_in_a_line_each():
    plain = Policy(mask="1010", reuse="residual")
    assert str(plain) == "2 of 4 calls  1010  residual"
    assert str(LEARNED) == "2 of 3 calls  110  blend 2, own sigmas, 31.3 ± 0.8 dB (6 samples)"
    assert str(Ladder.of([plain, Policy(mask="1000")])) == f"1 of 4 calls  1000  output\n{plain}"
    assert repr(LEARNED) == f"<Policy {LEARNED}>"


@pytest.mark.parametrize(
    ("quality", "says"),
    [
        (Quality(), None),
        (Quality(samples=3, psnr_error=1.0), None),
        (Quality(psnr=31.26), "31.3 dB"),
        (Quality(psnr=31.26, samples=1), "31.3 dB (1 sample)"),
        (MEASURED, "31.3 ± 0.8 dB (6 samples)"),
    ],
)
def test_a_figure_comes_with_its_uncertainty(quality, says):
    assert quality.text == says


def test_a_ladder_names_itself_briefly():
    assert repr(load(LADDER_FILE)) == "<Ladder of 2, 4, 6 of 8 calls>"
    named = Ladder.of([LEARNED.model_copy(update={"origin": Origin(model="tiny-flux")})])
    assert repr(named) == "<Ladder of 2 of 3 calls for 'tiny-flux'>"
    tall = Ladder.of([Policy(mask=Mask.uniform(1000, budget)) for budget in range(1, 1001)])
    assert len(repr(tall)) < 120


class Page(HTMLParser):
    """Reads HTML strictly: every element that is opened is closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows, self.labels = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in {"table", "thead", "tbody", "tr", "th", "td", "span"}, tag
        self.open.append(tag)
        self.labels += [value for name, value in attributes if name == "aria-label"]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.rows[-1][-1] += text


def test_notebooks_show_a_table_with_strips_and_figures():
    ladder = Ladder.of([LEARNED, Policy(mask="100", reuse="residual")])
    page = Page(ladder._repr_html_())
    head, first, second = page.rows
    assert first == ["1", "3.0x", "", "residual", "not measured"]
    assert second == ["2", "1.5x", "", "blend 2, own sigmas", "31.3 ± 0.8 dB (6 samples)"]
    assert len(head) == len(first)
    assert page.labels == ["computes steps 0 of 3", "computes steps 0, 1 of 3"]
    assert ladder._repr_html_().count("background") == 2 * 3  # a box for each step
    assert Page(LEARNED._repr_html_()).rows == [head, second]


@pytest.mark.parametrize("name", ["<b>&amp;", "two\nlines", "x" * 4096, "\u2028"])
def test_what_people_wrote_is_shown_on_one_line(name):
    ladder = Ladder.of([Policy(mask="10", origin=Origin(model=name))])
    assert repr(ladder).isprintable() and len(repr(ladder)) < 100
    assert len(Page(ladder._repr_html_()).rows) == 2


# One ladder out of two.

HERE = Origin(model="tiny-flux", scheduler="Euler", height=32, guidance=3.5, prompts=8, prompts_hash="a", seed=0)


def rungs_of(*budgets, reuse="output", loss=0.5, **changes):
    origin, quality = HERE.model_copy(update=changes), Quality(calibration_loss=loss)
    rung = Policy(mask="1", reuse=reuse, origin=origin, quality=quality)
    return Ladder.of([rung.model_copy(update={"mask": Mask.uniform(8, budget)}) for budget in budgets])


def test_ladders_of_the_same_settings_become_one():
    """The newer rungs replace those of the same budget; on what prompts they were found makes no difference."""
    there, new = rungs_of(2, 4, 6), rungs_of(3, 4, loss=0.25, prompts=16, prompts_hash="b", seed=7, calls=3)
    both = there.merged(new)
    assert both.budgets == (2, 3, 4, 6)
    assert [both[budget] for budget in (2, 6)] == [there[2], there[6]]
    assert [both[budget] for budget in (3, 4)] == [new[3], new[4]]
    assert (there.budgets, new.budgets) == ((2, 4, 6), (3, 4))
    assert there.merged(there) == there
    by_hand = Ladder.of([Policy(mask=Mask.uniform(8, 5))])
    assert by_hand.merged(there).budgets == there.merged(by_hand).budgets == (2, 4, 5, 6)


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"model": "other"}, "model is 'tiny-flux' in one and 'other' in the other"),
        ({"weights": "f0"}, "weights is None in one and 'f0'"),
        ({"adapters": ("oil",)}, "adapters"),
        ({"scheduler": "DDIM"}, "scheduler is 'Euler'"),
        ({"scheduler_settings": {"shift": 2.0}}, "scheduler_settings"),
        ({"height": 64}, "height is 32 in one and 64 in the other"),
        ({"guidance": 5.0}, "guidance is 3.5 in one and 5.0 in the other"),
        ({"teacher_steps": 56}, "teacher_steps"),
        ({"reuse": "residual"}, "reuse is 'output' in one and 'residual' in the other"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_ladders_of_other_settings_do_not_become_one(change, clause):
    for one, other in ((rungs_of(2), rungs_of(3, **change)), (rungs_of(2, 3), rungs_of(2, 3, **change))):
        text = refusal(one.merged, other)
        assert clause in text and "Keep them in two files" in text
        assert one.difference(other) in text and one.difference(one) is None


def test_ladders_of_other_steps_do_not_become_one():
    text = refusal(rungs_of(2).merged, Ladder.of([Policy(mask="110")]))
    assert "steps is 8 in one and 3 in the other. Keep them in two files" in text


# Values travel.


@pytest.mark.parametrize("value", [load(POLICY_FILE), load(LADDER_FILE), LEARNED, HERE, MEASURED], ids=type)
def test_values_can_be_copied_and_pickled(value):
    for twin in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert twin == value and type(twin) is type(value) and repr(twin) == repr(value)


def test_a_ladder_knows_how_it_came_about_and_is_equal_without():
    scored = Scored(Mask.parse("10"), 0.5, "ladder", 3, new=True)
    searched = Searched((scored,), calls=7, earlier=2, seconds=1.5, stopped="calls limit of 7")
    bare, told = (Ladder.of([Policy(mask="10")]) for _ in range(2))
    assert bare.searched is None
    assert told.told(searched) is told and told.searched == searched
    assert told == bare and bare == told
    for twin in (copy.copy(told), copy.deepcopy(told), pickle.loads(pickle.dumps(told))):
        assert twin.searched == searched and twin == bare


def test_a_file_does_not_say_how_a_ladder_came_about(tmp_path):
    told = Ladder.of([Policy(mask="10")]).told(Searched((), 7, 0, 1.5, None))
    assert Ladder.load(told.save(tmp_path / "a.json")).searched is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reuse": "residual"}, "weights need reuse"),
        ({"mask": "100"}, "1 computed steps need 1 rows"),
        ({"sigmas": (1.0, 0.0)}, "3 steps need 4 sigmas, got 2"),
        ({"quality": {"psnr": "high"}}, "quality.psnr is 'high'"),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_change_is_checked_as_a_new_value_is(change, says):
    assert says in refusal(LEARNED.model_copy, update=change)
    assert LEARNED.model_copy(update={"sigmas": None}).sigmas is None


# As keys of dictionaries


FROM_SOMEWHERE = Origin(model="tiny-flux", scheduler_settings={"shift": 3.0}, versions={"torch": "2"})


def test_what_is_equal_has_the_same_hash_wherever_it_came_from():
    policy = Policy(mask="110100", origin=FROM_SOMEWHERE)
    for value in (policy, Ladder.of([Policy(mask="100100"), policy]), FROM_SOMEWHERE, load(POLICY_FILE)):
        again = copy.deepcopy(value)
        assert value == again and hash(value) == hash(again) and {value: 1}[again] == 1


def test_policies_that_do_other_things_are_told_apart():
    made = [
        Policy(mask="110100"),
        Policy(mask="101100"),
        Policy(mask="110100", reuse="residual"),
        Policy(mask="110100", weights=[[1.0], [1.0], [1.0]]),
        Policy(mask="110100", sigmas=[1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0]),
    ]
    assert len(set(made)) == len({hash(policy) for policy in made}) == len(made)
    # Where they came from is no part of the hash, but still of what they are.
    assert len({made[0], made[0].model_copy(update={"origin": FROM_SOMEWHERE})}) == 2


def test_a_comparison_is_not_a_policy_of_a_newer_version():
    with pytest.raises(PolicyError, match=r"this is a comparison, not a policy\. .* --show-only --out"):
        parse({"kind": "comparison", "version": 3})
