"""Policies that others made."""

from __future__ import annotations

import pickle
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch

import budcache
from budcache import BudcacheError, FileError, Mask, PolicyError, import_policy

SKIPPED = [1, 2, 4, 5, 7]
SIGMAS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.2)


def saved(path: Path, **data: object) -> Path:
    torch.save(data, path)
    return path


# The authors' checkpoints, as their three searches and two trainings write them


@pytest.mark.parametrize(
    ("name", "data", "steps"),
    [
        ("flux_8nfe3_h1a2b.pt", {"cache_step": SKIPPED, "best_loss": 0.01}, None),
        ("mask.pt", {"cache_step": SKIPPED, "best_loss": 0.01}, 8),
        ("mask.pt", {"cache_step": torch.tensor(SKIPPED)}, 8),
        (
            "wan.pt",
            {"cache_step": SKIPPED, "schedule_mask": [1, 0, 0, 1, 0, 0, 1, 0], "schedule_indices": [0, 3, 6]},
            None,
        ),
        ("final.pt", {"cache_step": SKIPPED, "student_steps": 8}, None),
    ],
)
def test_the_authors_checkpoints_are_read(name, data, steps, tmp_path):
    policy = import_policy(saved(tmp_path / name, **data), steps=steps)
    assert str(policy.mask) == "10010010" and policy.reuse == "residual" and policy.sigmas is None
    assert import_policy(str(tmp_path / name), steps=steps, reuse="output").reuse == "output"


@pytest.mark.parametrize("last", [(0.0,), ()])
def test_learned_levels_are_read_along(last, tmp_path):
    data = {"cache_step": SKIPPED, "student_steps": 8, "learned_sigmas": torch.tensor([*SIGMAS, *last])}
    assert import_policy(saved(tmp_path / "final.pt", **data)).sigmas == pytest.approx((*SIGMAS, 0.0))


@pytest.mark.parametrize(
    ("data", "steps", "words"),
    [
        ({"cache_step": SKIPPED}, None, "--steps"),
        ({"best_loss": 0.1}, 8, "no cache_step"),
        ({"cache_step": [1, 9]}, 8, "step 9"),
        ({"cache_step": [-1]}, 8, "step -1"),
        ({"cache_step": [0, 1]}, 8, "step 0"),
        ({"cache_step": "12"}, 8, "whole numbers"),
        ({"cache_step": [1.5]}, 8, "whole numbers"),
        ({"cache_step": [True]}, 8, "whole numbers"),
        ({"cache_step": None}, 8, "whole numbers"),
        ({"cache_step": SKIPPED, "student_steps": 10**9}, None, "1000000000"),
        ({"cache_step": SKIPPED, "student_steps": True}, None, "--steps"),
        ({"cache_step": SKIPPED, "schedule_mask": 5}, None, "schedule_mask of .* is 5"),
        ({"cache_step": SKIPPED, "schedule_mask": torch.tensor(1)}, None, "schedule_mask of .* is 1"),
        ({"cache_step": SKIPPED, "student_steps": 8}, 9, "8 steps, not of 9"),
        ({"cache_step": SKIPPED, "student_steps": 8, "learned_sigmas": "high"}, None, "learned_sigmas"),
        ({"cache_step": SKIPPED, "student_steps": 8, "learned_sigmas": [0.5, 1.0]}, None, "sigmas"),
    ],
)
def test_checkpoints_that_make_no_sense_are_refused(data, steps, words, tmp_path):
    with pytest.raises(PolicyError, match=words):
        import_policy(saved(tmp_path / "mask.pt", **data), steps=steps)


class Hostile:
    """Touches a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def hostile(kind: str, folder: Path) -> Path:
    path, trap = folder / "mask_8nfe3.pt", folder / "touched"
    match kind:
        case "code":
            torch.save({"cache_step": Hostile(trap)}, path)
        case "old code":
            path.write_bytes(pickle.dumps({"cache_step": Hostile(trap)}))
        case "cut short":
            saved(path, cache_step=SKIPPED)
            path.write_bytes(path.read_bytes()[:-200])
        case "nonsense":
            path.write_bytes(b"\x80\x02garbage" * 99)
        case "empty":
            path.touch()
        case "list":
            torch.save([1, 2], path)
        case "bomb":
            with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("archive/data.pkl", bytes(80_000_000))
    return path


@pytest.mark.parametrize("kind", ["code", "old code", "cut short", "nonsense", "empty", "list", "bomb"])
def test_hostile_checkpoints_are_refused_and_nothing_in_them_runs(kind, tmp_path):
    with pytest.raises(PolicyError, match=r"Is it"):
        import_policy(hostile(kind, tmp_path))
    assert not (tmp_path / "touched").exists()


def test_a_file_that_is_not_there_is_said(tmp_path):
    for name in ("none.pt", "none.yaml"):
        with pytest.raises(FileError, match="no file"):
            import_policy(tmp_path / name)


# cache-dit


@pytest.mark.parametrize(("preset", "calls"), [("slow", 18), ("medium", 15), ("fast", 11), ("ultra", 8)])
def test_presets_of_cache_dit_are_known(preset, calls):
    policy = import_policy(f"cache-dit:{preset}")
    assert (policy.budget, policy.steps, policy.reuse) == (calls, 28, "residual")
    assert import_policy(preset, steps=28) == policy


def test_presets_for_other_steps_are_cache_dit_s_to_make(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cache_dit", None)  # as where it is not installed
    with pytest.raises(PolicyError, match="Install it"):
        import_policy("cache-dit:fast", steps=50)
    with pytest.raises(PolicyError, match="Did you mean ultra"):
        import_policy("cache-dit:ultro")


@pytest.mark.parametrize("mask", [[1, 0, 0, 1], "1001", "1,0,0,1", "[1, 0, 0, 1]", torch.tensor([1, 0, 0, 1])])
def test_masks_of_cache_dit_are_read(mask, tmp_path):
    assert str(import_policy(mask).mask) == "1001"
    (tmp_path / "m.yaml").write_text("cache_config:\n  steps_computation_mask: [1, 0, 0, 1]\n")
    assert import_policy(tmp_path / "m.yaml") == import_policy(mask)


@pytest.mark.parametrize("text", ["a: [", "- 1", "cache_config: 3", "cache_config: {steps_computation_mask: [2]}", ""])
def test_settings_without_a_mask_are_refused(text, tmp_path):
    (tmp_path / "m.yaml").write_text(text)
    with pytest.raises(PolicyError, match=r"m\.yaml"):
        import_policy(tmp_path / "m.yaml")


def test_a_few_aliases_do_not_become_a_book(tmp_path):
    """Nine levels of nine references each are 400 million values; only their beginning is quoted."""
    lines = ["a: &a [1]", *(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]" for a, b in pairwise("abcdefghi"))]
    (tmp_path / "m.yaml").write_text("\n".join([*lines, "steps_computation_mask: *i"]))
    with pytest.raises(PolicyError, match="is not plain YAML"):
        import_policy(tmp_path / "m.yaml")


def test_what_was_exported_can_be_imported(tmp_path):
    (tmp_path / "no-ending").write_text("steps_computation_mask: [1, 0]")
    assert str(import_policy(str(tmp_path / "no-ending")).mask) == "10"
    policy = budcache.Policy(mask="110010", reuse="residual")
    budcache.export(policy, "cache-dit", tmp_path / "m.yaml", approximate=True)
    assert import_policy(tmp_path / "m.yaml") == policy


# By hand


def test_steps_by_hand():
    policy = import_policy(steps=8, computed=[0, 3, 6])
    assert policy == budcache.Policy(mask=Mask.of(8, [0, 3, 6]))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either"),
        ({"source": "10", "computed": [0], "steps": 2}, "not both"),
        ({"computed": [0]}, "Give steps"),
        ({"computed": [1], "steps": 4}, "step 0"),
        ({"computed": [0, 4], "steps": 4}, "step 4"),
        ({"source": [1, 0, 2]}, "2 in it"),
        ({"source": "1021"}, "'2'"),
        ({"source": [0, 1]}, "step 0"),
        ({"source": []}, "at least one"),
        ({"computed": [0], "steps": 4.0}, r"steps must be whole, but 4\.0"),
        ({"computed": [0], "steps": "4"}, "steps must be whole, but '4'"),
        ({"source": "1010", "steps": "4"}, "steps must be whole"),
        ({"computed": ["a"], "steps": 4}, "computed must be whole"),
        ({"computed": 3, "steps": 4}, "a list of steps"),
    ],
)
def test_what_is_no_mask_is_refused(given, words):
    with pytest.raises(BudcacheError, match=words):
        import_policy(given.pop("source", None), **given)
