"""Hostile contents made small: found by `soak.hostile`, or by reading the readers. Each is refused in a sentence."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from budcache.errors import BudcacheError
from budcache.storage import media
from soak.examples import comparison_folder
from soak.readers import FILES

CORPUS = Path(__file__).parent / "corpus"
WORST = sorted(path for path in CORPUS.rglob("*") if path.is_file())


def refusal(work) -> str:
    with pytest.raises(BudcacheError) as caught:
        work()
    text = str(caught.value)
    assert "\n" not in text
    assert 0 < len(text) < 700
    return text


@pytest.mark.parametrize("path", WORST, ids=lambda path: path.relative_to(CORPUS).as_posix())
def test_it_is_refused_in_a_sentence(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(path.parent, tmp_path / "here")
    warnings.simplefilter("ignore")
    reader, place = FILES[path.relative_to(CORPUS).parts[0]], tmp_path / "here" / path.name
    # How long it takes is for `make soak` to judge; who would read for ever is ended by pytest's `timeout`.
    assert refusal(lambda: reader.read(place)) == refusal(lambda: reader.read(place))
    assert not list(tmp_path.rglob("executed"))


def test_every_kind_of_file_is_in_the_corpus():
    kinds = {path.relative_to(CORPUS).parts[0] for path in WORST}
    assert kinds == set(FILES) - {"comparison folders"}  # these are made below


def test_every_kind_of_file_can_be_read_where_it_is_good(tmp_path):
    """Or refusing would prove nothing."""
    for name in ("records", "ledgers", "comparison folders"):
        (home := tmp_path / name).mkdir()
        for good in FILES[name].good(home):
            if name == "ledgers":
                good = good.rename(home / "a.ledger.jsonl")
            FILES[name].read(good)


@pytest.mark.parametrize(
    "line",
    ['{"conditions": 1, "methods": [1], "metrics": []}', '{"removed": [[1], 2]}', '{"entry": {}, "made of": 1e999}'],
)
def test_a_line_of_a_comparison_that_makes_no_sense_is_said(line, tmp_path):
    folder = comparison_folder(tmp_path / "folder")
    with (folder / "drawn.jsonl").open("a") as file:
        file.write(line + "\n")
    assert "has a line that cannot be used" in refusal(lambda: FILES["comparison folders"].read(folder))


def test_a_journal_of_other_work_is_refused_in_one_line_whatever_it_is_called(tmp_path):
    folder = comparison_folder(tmp_path / "folder")
    text = (folder / "measured.jsonl").read_text()
    (folder / "measured.jsonl").write_text(text.replace('"model"', '"\\n"', 1))
    assert "belongs to a comparison with" in refusal(lambda: FILES["comparison folders"].read(folder))


def test_samples_and_pictures_that_are_none_are_said(tmp_path):
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    with (tmp_path / "huge.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f2", "fortran_order": False, "shape": (10**6,) * 3})
    for path in sorted(tmp_path.glob("*.npy")):
        assert "cannot be read" in refusal(lambda path=path: media.numbers(path))
    good = tmp_path / "good.png"
    Image.new("RGB", (64, 64)).save(good)
    data = good.read_bytes()
    for cut in range(0, len(data), 7):
        (tmp_path / "bad.png").write_bytes(data[:cut] + b"\xff" * 4 + data[cut + 4 :])
        try:
            media.read(tmp_path / "bad.png")
        except BudcacheError as error:
            assert "cannot be read" in str(error)
