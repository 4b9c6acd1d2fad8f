"""Pictures and videos under names that can hold them, or a sentence that says where they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from budcache.errors import FileError, PipelineError
from budcache.storage import media

PICTURE = Image.new("RGB", (16, 16), "red")
VIDEO = [PICTURE, Image.new("RGB", (16, 16), "blue")]


@pytest.fixture
def no_imageio(monkeypatch):
    stock = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "imageio" else stock(name))


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ({"images": [PICTURE]}, [PICTURE]),
        ({"frames": [VIDEO]}, [VIDEO]),
        ({"videos": [VIDEO]}, [VIDEO]),  # as modular pipelines call them
        ({"images": None, "frames": [VIDEO]}, [VIDEO]),
        ({"frames": np.zeros((1, 2, 16, 16, 3))}, [[Image.new("RGB", (16, 16))] * 2]),
    ],
    ids=["images", "frames", "videos", "no images", "numbers"],
)
def test_samples_are_found_whatever_the_pipeline_calls_them(output, found):
    assert media.pictures(SimpleNamespace(**output)) == found
    assert len(media.samples(SimpleNamespace(**output))) == 1


def test_what_has_no_pictures_is_said_to_have_none():
    with pytest.raises(
        PipelineError, match=r"returned SimpleNamespace, which has no images, frames or videos\. Use an"
    ):
        media.pictures(SimpleNamespace(audios=[]))


@pytest.mark.parametrize(
    ("name", "sample"),
    [
        ("a.png", PICTURE),
        ("a.JPG", PICTURE),
        ("a.webp", PICTURE),
        ("a.webp", VIDEO),
        ("a.gif", VIDEO),
        ("a.mp4", VIDEO),
    ],
)
def test_what_fits_its_name_is_written_under_it(tmp_path, name, sample):
    media.check_format(tmp_path / name, video=sample is VIDEO)
    assert media.save(sample, tmp_path / name) == tmp_path / name
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "video", "says"),
    [
        ("a.mp4", False, "a name for a video, but the pipeline makes a picture. Use .png."),
        ("a.png", True, "a name for a picture, but the pipeline makes a video. Use .mp4, .webp or .gif."),
        ("a.xyz", False, "ends in .xyz, which cannot be written. Use .png."),
        ("a.xyz", True, "ends in .xyz, which cannot be written. Use .mp4, .webp or .gif."),
    ],
)
def test_what_does_not_fit_is_refused_before_the_work(name, video, says):
    with pytest.raises(FileError) as caught:
        media.check_format(Path(name), video)
    assert says in str(caught.value)


def test_without_imageio_a_video_is_an_animated_webp(no_imageio, tmp_path):
    assert media.ending(video=True) == ".webp"
    assert media.save(VIDEO, tmp_path / "000") == tmp_path / "000.webp"
    with pytest.raises(FileError, match=r"imageio to be written\. Install budcache\[video\], or use \.webp or \.gif"):
        media.check_format(tmp_path / "a.mp4", video=True)


@pytest.mark.parametrize(("name", "lossless"), [("a.webp", True), ("a.gif", False)])
def test_an_animated_file_has_every_frame_at_its_time(tmp_path, name, lossless):
    """Small ones keep every colour as WebP; a GIF cannot."""
    frames = np.random.default_rng(0).integers(0, 255, (5, 40, 40, 3), np.uint8)
    media.save([Image.fromarray(frame) for frame in frames], tmp_path / name, fps=10)
    with Image.open(tmp_path / name) as video:
        assert video.n_frames == 5
        found, times = [], []
        for place in range(5):
            video.seek(place)
            found.append(np.asarray(video.convert("RGB")))
            times.append(video.info["duration"])
    assert set(times) == {100}
    assert np.array_equal(found, frames) == lossless


@pytest.mark.parametrize(("name", "sample", "kept"), [("h.mp4", PICTURE, "h.mp4.png"), ("h.png", VIDEO, "h.png.mp4")])
def test_what_was_made_all_the_same_is_not_lost(tmp_path, name, sample, kept):
    """And takes nobody's place: there may be an h.png beside h.mp4."""
    with pytest.raises(FileError) as caught:
        media.save(sample, tmp_path / name)
    assert f"it is in {tmp_path / kept}" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == [kept]


def test_a_name_without_an_ending_gets_the_usual_one(tmp_path):
    media.check_format(tmp_path / "000", video=False)
    assert media.save(PICTURE, tmp_path / "000") == tmp_path / "000.png"
    assert media.save(VIDEO, tmp_path / "001") == tmp_path / "001.mp4"
