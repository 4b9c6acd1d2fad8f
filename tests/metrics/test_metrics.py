from __future__ import annotations

import io
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from budcache.errors import BudcacheError
from budcache.metrics import METRICS, metric, psnr, summary, usual
from budcache.metrics.clip import ClipB
from budcache.metrics.lpips import Lpips, alexnet
from budcache.storage.media import to_levels, to_picture, to_webp


def picture(seed, *shape):
    return np.random.default_rng(seed).random((*shape, 3), dtype=np.float32)


@pytest.fixture(scope="module")
def lpips():
    """LPIPS on an AlexNet that has seen nothing; the heads are the published ones."""
    import torch

    torch.manual_seed(0)
    found = Lpips()
    found.use(alexnet())
    return found


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """A CLIP of the real classes, small enough to be made here, in a folder as the hub would give it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, PreTrainedTokenizerFast

    words = ["<start>", "<end>", "red", "apple", "cat", "face"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<start>", eos_token="<end>", pad_token="<end>", model_max_length=8
    )
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = CLIPModel(
        CLIPConfig(
            text_config={**size, "vocab_size": len(words), "max_position_embeddings": 8, "eos_token_id": 1},
            vision_config={**size, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        )
    )
    images = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    folder = tmp_path_factory.mktemp("clip")
    model.save_pretrained(folder)
    CLIPProcessor(image_processor=images, tokenizer=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def clip(clip_folder):
    class Small(ClipB):
        source = str(clip_folder)

    return Small()


def test_every_metric_says_what_it_is():
    moving, others = ["worst-frame", "steadiness"], ["ssim", "lpips", "imagereward", "clip-b", "clip-l", "hpsv2"]
    assert list(METRICS) == ["psnr", *moving, *others]
    assert {name for name, kind in METRICS.items() if kind.reference} == {"psnr", *moving, "ssim", "lpips"}
    assert [name for name, kind in METRICS.items() if kind.moving] == moving
    assert usual(video=False) == ("psnr", "ssim")
    assert usual(video=True) == ("psnr", "worst-frame", "steadiness", "ssim")
    assert {name for name, kind in METRICS.items() if not kind.higher} == {"lpips"}
    assert all(metric(name).title for name in METRICS)


def test_a_metric_that_is_not_there_is_named():
    with pytest.raises(BudcacheError, match=r"no metric 'fid'\. Choose one of psnr, worst-frame, steadiness, ssim"):
        metric("fid")


@given(st.floats(1e-4, 0.5))
def test_psnr_of_a_constant_difference_is_known(gap):
    dark, light = np.full((12, 12, 3), 0.25), np.full((12, 12, 3), 0.25 + gap)
    assert metric("psnr")(light, dark) == pytest.approx(-20 * math.log10(gap))


def test_equal_pictures_are_as_near_as_can_be(lpips):
    one = picture(0, 48, 40)
    assert psnr(one, one) == metric("psnr")(one, one) == 100.0
    assert metric("ssim")(one, one) == pytest.approx(1.0)
    assert lpips(one, one) == 0.0


@pytest.mark.parametrize("name", ["psnr", "ssim", "lpips"])
def test_more_noise_is_farther_and_the_order_does_not_matter(name, lpips):
    found = lpips if name == "lpips" else metric(name)
    one, noise = picture(1, 64, 64), picture(2, 64, 64) - 0.5
    near, far = (np.clip(one + size * noise, 0, 1) for size in (0.05, 0.4))
    better, worse = found(near, one), found(far, one)
    assert (better > worse) == found.higher
    assert found(one, near) == pytest.approx(better, rel=1e-5)


def test_ssim_is_the_formula_where_that_is_simple():
    """Of two flat pictures only the means are left of it."""
    a, b = 0.2, 0.6
    expected = (2 * a * b + 0.01**2) / (a * a + b * b + 0.01**2)
    assert metric("ssim")(np.full((32, 32, 3), a), np.full((32, 32, 3), b)) == pytest.approx(expected, rel=1e-3)


def test_lpips_is_torchmetrics_number_for_number(lpips, monkeypatch):
    """Theirs takes its trunk from torchvision; given ours instead, both must say the same."""
    import torch
    import torchmetrics.functional.image.lpips as theirs

    monkeypatch.setattr(theirs, "_get_tv_model_features", lambda net, pretrained: lpips.trunk)
    judge = theirs._LPIPS(net="alex", pretrained=True, pnet_rand=True, use_dropout=True).eval()
    for seed, shape in enumerate([(64, 64), (80, 48)]):
        one, other = picture(seed, *shape), picture(seed + 10, *shape)
        planes = [torch.from_numpy(p).permute(2, 0, 1)[None] for p in (one, other)]
        with torch.no_grad():
            expected = float(judge(*planes, normalize=True))
        assert lpips(one, other) == pytest.approx(expected, rel=1e-5)


def test_a_video_is_the_mean_of_its_frames(clip):
    video, other = picture(3, 4, 32, 32), picture(4, 4, 32, 32)
    for found in (metric("psnr"), metric("ssim"), clip):
        frames = [found(a, b, "red cat") for a, b in zip(video, other, strict=True)]
        assert found(video, other, "red cat") == pytest.approx(np.mean(frames))


def test_there_is_one_psnr_for_videos():
    """The mean over frames, of which an equal one counts 100 dB; not the PSNR of the mean error over the clip."""
    video = picture(5, 3, 16, 16)
    apart = np.array([0.0, 0.01, 0.1])[:, None, None, None]
    assert psnr(video + apart, video) == pytest.approx((100 + 40 + 20) / 3, abs=1e-3)
    assert psnr(video + apart, video) == metric("psnr")(video + apart, video)


@given(st.integers(2, 6), st.floats(0.01, 0.2))
def test_flicker_is_unsteady_where_an_even_offset_is_not(count, size):
    """Both are equally far from the full run, frame by frame; only one of them shows when the video plays."""
    video = 0.25 + 0.5 * picture(6, count, 8, 8).astype(np.float64)
    sign = (-1.0) ** np.arange(count)[:, None, None, None]
    even, flicker = video + size, video + size * sign
    assert psnr(even, video) == pytest.approx(psnr(flicker, video))
    steadiness = metric("steadiness")
    assert steadiness(even, video) == 100.0
    # A change is off by twice the size: 6 dB worse than each of its frames.
    assert steadiness(flicker, video) == pytest.approx(psnr(flicker, video) - 20 * math.log10(2))


def test_steadiness_is_the_psnr_of_the_changes_from_frame_to_frame():
    video, other = picture(7, 4, 8, 8), picture(8, 4, 8, 8)
    changes = [((a1 - a0) - (b1 - b0)) ** 2 for a0, a1, b0, b1 in zip(video, video[1:], other, other[1:], strict=False)]
    expected = np.mean([-10 * math.log10(np.mean(change, dtype=np.float64)) for change in changes])
    assert metric("steadiness")(video, other) == pytest.approx(expected, abs=1e-4)
    assert metric("steadiness")(video, video) == metric("worst-frame")(video, video) == 100.0
    # What both do alike, however wild, is steady.
    assert metric("steadiness")(video[::-1] / 2 + 0.25, video[::-1] / 2 + 0.25) == 100.0


def test_the_worst_frame_is_not_hidden_by_the_others():
    video = picture(5, 3, 16, 16)
    apart = np.array([0.0, 0.1, 0.01])[:, None, None, None]
    assert metric("worst-frame")(video + apart, video) == pytest.approx(20, abs=1e-3)


@pytest.mark.parametrize("name", ["worst-frame", "steadiness"])
def test_a_picture_has_nothing_that_moves(name):
    for sample in (picture(0, 16, 16), picture(0, 1, 16, 16)):
        with pytest.raises(BudcacheError, match=rf"is of videos.*leave {name} out"):
            metric(name)(sample, sample)


def test_the_quality_of_a_policy_for_videos_is_by_frames_too():
    import torch
    from zoo import entry

    import budcache

    kind = entry("wan-t2v-euler")
    pipe, call = kind.build(), {name: value for name, value in kind.kwargs().items() if name != "generator"}
    samples = [{**call, "prompt": text} for text in ("a cat", "the sea")]
    policy = budcache.search(pipe, steps=4, budgets=[2], samples=samples, selection=1, seed=3)[2]

    def drawn():  # the sample that was put aside, from its noise
        call = {**samples[1], "generator": torch.Generator().manual_seed(4), "num_inference_steps": 4}
        return pipe(**call, output_type="np").frames[0]

    full = drawn()
    with budcache.applied(pipe, policy):
        found = drawn()
    frames = [-10 * math.log10(((a.astype(float) - b) ** 2).mean()) for a, b in zip(found, full, strict=True)]
    assert np.std(frames) > 0.01, "all frames are equally far, so this would tell nothing"
    assert policy.quality.psnr == pytest.approx(np.mean(frames), abs=1e-3)


def test_clip_is_the_cosine_of_the_models_own_embeddings(clip):
    import torch

    one = picture(5, 40, 56)
    value = clip(one, prompt="red apple")
    images = clip.processor.image_processor(images=[(one * 255).round().astype(np.uint8)], return_tensors="pt")
    tokens = clip.processor.tokenizer(["red apple"], return_tensors="pt")
    with torch.no_grad():
        found = clip.model(pixel_values=images["pixel_values"], input_ids=tokens["input_ids"], return_dict=True)
    # The logits are the cosine times a learned scale.
    cosine = float(found.logits_per_image / clip.model.logit_scale.detach().exp())
    assert value == pytest.approx(max(0.0, 100 * cosine), abs=1e-3)
    assert value != pytest.approx(clip(one, prompt="cat face"), abs=1e-3)


def test_clip_cuts_a_prompt_that_is_too_long(clip):
    one = picture(6, 32, 32)
    assert clip(one, prompt="red cat " * 50) == pytest.approx(clip(one, prompt="red cat " * 80))


def test_missing_weights_are_a_sentence(monkeypatch, tmp_path):
    import torch

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr("budcache.metrics.lpips.WEIGHTS", "http://127.0.0.1:9/alexnet-owt-7be5be79.pth")
    with pytest.raises(BudcacheError, match=r"LPIPS needs AlexNet's weights.*checkpoints.*leave lpips out"):
        Lpips().prepare()

    class Nowhere(ClipB):
        source = str(tmp_path / "nothing")

    with pytest.raises(BudcacheError, match=r"CLIP \(B\) needs the weights of .*nothing.*leave clip-b out"):
        Nowhere().prepare()


@pytest.mark.parametrize(("name", "extra"), [("imagereward", "rewards"), ("hpsv2", "hps")])
def test_missing_packages_name_their_extra(name, extra, monkeypatch):
    for package in ("ImageReward", "hpsv2"):
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(BudcacheError, match=rf"budcache\[{extra}\], or leave {name} out"):
        metric(name)(picture(0, 16, 16), prompt="a cat")


@pytest.fixture
def rewards(monkeypatch):
    """Stand-ins for both packages with their functions and signatures, whose score is the brightness of a picture.

    Returns what they were told: loaded names and devices, and prompts with the pictures that came with them.
    """
    told = SimpleNamespace(loaded=[], shown=[])

    def judged(prompt, image):
        assert isinstance(image, Image.Image) and image.mode == "RGB"  # the real ones raise a TypeError
        told.shown.append((prompt, image.size))
        return np.asarray(image, np.float32).mean() / 255

    class Model:
        def score(self, prompt, image):
            return judged(prompt, image).item()

    def load(name="ImageReward-v1.0", device="cpu", download_root=None, med_config=None):
        told.loaded.append((name, device))
        return Model()

    def score(imgs_path, prompt, hps_version="v2.0"):
        told.loaded.append((hps_version,))  # it loads its checkpoint every time
        return [judged(prompt, imgs_path)]

    monkeypatch.setitem(sys.modules, "ImageReward", SimpleNamespace(load=load))
    monkeypatch.setitem(sys.modules, "hpsv2", SimpleNamespace(score=score))
    return told


@pytest.mark.parametrize("name", ["imagereward", "hpsv2"])
def test_a_reward_is_what_its_package_says_of_prompt_and_picture(name, rewards):
    found = metric(name)
    found.prepare()
    rewards.shown.clear()  # HPSv2 is shown a picture to load its weights
    one, other = picture(0, 24, 40), 0.5 * picture(1, 16, 16)
    assert found(one, prompt="a red cat") == pytest.approx(one.mean(), abs=1e-3)
    assert found(other, prompt="a ship") == pytest.approx(other.mean(), abs=1e-3)
    assert found(one * 9 - 4, prompt="") == pytest.approx((one * 9 - 4).clip(0, 1).mean(), abs=1e-3)
    # PIL's sizes are width by height.
    assert rewards.shown == [("a red cat", (40, 24)), ("a ship", (16, 16)), ("", (40, 24))]


@pytest.mark.parametrize("name", ["imagereward", "hpsv2"])
def test_a_reward_of_a_video_is_the_mean_over_its_frames(name, rewards):
    found = metric(name)
    found.prepare()
    rewards.shown.clear()
    video = np.stack([np.full((16, 24, 3), value) for value in (0.0, 0.2, 1.0)])
    assert found(video, prompt="a storm") == pytest.approx(0.4, abs=1e-3)
    assert rewards.shown == [("a storm", (24, 16))] * 3


def test_reward_models_are_loaded_once_in_their_published_versions(rewards):
    found = METRICS["imagereward"]("cuda:1")
    for seed in range(3):
        found(picture(seed, 16, 16), prompt="a cat")
    assert rewards.loaded == [("ImageReward-v1.0", "cuda:1")]
    rewards.loaded.clear()
    found = metric("hpsv2")
    for seed in range(3):
        found(picture(seed, 16, 16), prompt="a cat")
    assert rewards.loaded == [("v2.1",)] * 4  # three pictures, and one to see that the weights are there


@pytest.mark.parametrize(("name", "call"), [("imagereward", "load"), ("hpsv2", "score")])
def test_missing_reward_weights_are_a_sentence(name, call, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("no network")

    package = {"imagereward": "ImageReward"}.get(name, name)
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(**{call: fail}))
    with pytest.raises(BudcacheError, match=rf"could not be downloaded \(OSError\).*leave {name} out"):
        metric(name)(picture(0, 16, 16), prompt="a cat")


def test_what_is_not_a_picture_is_refused():
    with pytest.raises(BudcacheError, match=r"got \(5, 5\)"):
        metric("psnr")(np.zeros((5, 5)), np.zeros((5, 5)))
    with pytest.raises(BudcacheError, match="one size"):
        metric("psnr")(picture(0, 16, 16), picture(0, 16, 17))
    with pytest.raises(BudcacheError, match="compares with a reference"):
        metric("ssim")(picture(0, 16, 16))
    with pytest.raises(BudcacheError, match="window of 11"):
        metric("ssim")(picture(0, 8, 8), picture(1, 8, 8))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=40))
def test_a_summary_is_ordered_from_the_bad_side(values):
    high, low = summary(values), summary(values, higher=False)
    slack = 1e-9
    assert high.worst - slack <= high.tail <= max(values) + slack
    assert low.worst + slack >= low.tail >= min(values) - slack
    assert high.worst == min(values)
    assert low.worst == max(values)
    assert high.mean == pytest.approx(low.mean)
    # Turned over, good and bad change places.
    turned = summary([-value for value in values], higher=False)
    assert turned.tail == pytest.approx(-high.tail, abs=1e-9)


def test_a_mean_comes_with_its_standard_error():
    assert summary([1.0, 2.0, 3.0, 4.0]).error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert summary([2.0] * 9).error == 0
    assert summary([2.0]).error is None, "one value says nothing of how far it may be off"


def test_levels_and_pictures_come_from_any_numbers():
    halves = np.linspace(-0.5, 1.5, 24, dtype=np.float16).reshape(2, 4, 3)
    levels = to_levels(halves)
    assert levels.dtype == np.uint8
    assert levels.flat[0] == 0 and levels.flat[-1] == 255
    assert to_levels(levels) is levels
    assert np.array_equal(to_levels(halves.astype(np.float64)), levels)
    assert to_picture(halves).size == (4, 2)
    with Image.open(io.BytesIO(to_webp(to_picture(halves)))) as small:
        assert (small.format, small.size) == ("WEBP", (4, 2))


def test_a_summary_of_nothing_is_refused():
    with pytest.raises(BudcacheError, match="no values"):
        summary([])
