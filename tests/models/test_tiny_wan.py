"""The embedded video models: that they are all there, run as Wan does, and show what they are asked for."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path

import diffusers
import numpy as np
import pytest
import torch
from alignment import aligned
from PIL import Image

import budcache
from budcache import models

HERE = Path(__file__).parent
FOLDER = Path(models.__file__).parent
SIZES = ("tiny-wan", "tiny-wan-large")
LIMIT = 45_000_000  # bytes of all embedded models together


@pytest.fixture(scope="module")
def pipe():
    return opened("tiny-wan")


@pytest.fixture(scope="module")
def large():
    return opened("tiny-wan-large")


def opened(name, **settings):
    pipe = models.load(name, **settings)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe, prompt, *, seed=0, steps=4, **settings):
    """Frames in [0, 1], one seed a clip."""
    count = 1 if isinstance(prompt, str) else len(prompt)
    generators = [torch.Generator().manual_seed(seed + i) for i in range(count)]
    frames = pipe(prompt, generator=generators, num_inference_steps=steps, **settings).frames
    return frames if count > 1 else frames[0]


def psnr(a, b):
    return float(-10 * np.log10(np.square(a - b).mean() + 1e-12))


# what they are


@pytest.mark.parametrize("name", SIZES)
def test_each_is_a_stock_wan_in_float32_with_other_defaults(name):
    pipe = opened(name)
    assert isinstance(pipe, diffusers.WanPipeline)
    stock, own = (inspect.unwrap(cls.__call__) for cls in (diffusers.WanPipeline, type(pipe)))
    assert own.__code__ is stock.__code__
    changed = {
        key: value.default
        for key, value in inspect.signature(own).parameters.items()
        if value.default != inspect.signature(stock).parameters[key].default
    }
    assert changed == {"height": 64, "width": 64, "num_frames": 17, "max_sequence_length": 16}
    parts = (pipe.transformer, pipe.vae, pipe.text_encoder)
    assert {p.dtype for part in parts for p in part.parameters()} == {torch.float32}


def test_they_differ_in_the_transformer_alone(pipe, large):
    counts = [sum(p.numel() for p in each.transformer.parameters()) for each in (pipe, large)]
    assert 1.5e6 <= counts[0] <= 2e6
    assert 5e6 <= counts[1] <= 7e6
    for part in ("vae", "text_encoder"):
        one, other = (getattr(each, part).state_dict() for each in (pipe, large))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_they_have_wans_structure_and_scheduler(pipe):
    config, vae = pipe.transformer.config, pipe.vae
    assert tuple(config.patch_size) == (1, 2, 2)
    assert config.qk_norm == "rms_norm_across_heads"
    assert config.cross_attn_norm
    assert (pipe.vae_scale_factor_temporal, pipe.vae_scale_factor_spatial, vae.config.z_dim) == (4, 8, 16)
    assert type(pipe.scheduler) is diffusers.UniPCMultistepScheduler
    assert (pipe.scheduler.config.use_flow_sigmas, pipe.scheduler.config.flow_shift) == (True, 3.0)


def test_all_embedded_models_together_stay_small():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= LIMIT


def test_the_prompt_sets_are_32_each_share_no_prompt_and_use_known_words(pipe):
    calibration, evaluation = (models.prompts("tiny-wan", split) for split in models.SPLITS)
    assert len(calibration) == len(evaluation) == 32
    assert len({*calibration, *evaluation}) == 64
    assert models.prompts("tiny-wan-large", "evaluation") == evaluation
    for prompt in calibration + evaluation:
        assert pipe.tokenizer.unk_token_id not in pipe.tokenizer(prompt).input_ids, prompt


# what they show


def cut_out(frame):
    """The object alone, brought to 16 x 16 pixels."""
    solid = frame.min(-1) < 0.9
    rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
    if not len(rows):
        return np.ones((16, 16, 3))
    picture = Image.fromarray((frame * 255).astype(np.uint8))
    box = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    return np.asarray(picture.crop(box).resize((16, 16), Image.Resampling.BOX), dtype=np.float32) / 255


def known():
    """All emoji as the tests know them, and their names."""
    names = (HERE / "wan-thumbnails.txt").read_text().splitlines()
    sheet = np.asarray(Image.open(HERE / "wan-thumbnails.png").convert("RGB"), dtype=np.float32) / 255
    rows = sheet.shape[0] // 16
    return sheet.reshape(rows, 16, 16, 16, 3).swapaxes(1, 2).reshape(-1, 16, 16, 3)[: len(names)], names


def place(frame):
    """Middle of the object in pixels, and its area."""
    weight = 1 - frame.min(-1)
    ys, xs = np.mgrid[: weight.shape[0], : weight.shape[1]]
    return (weight * xs).sum() / weight.sum(), (weight * ys).sum() / weight.sum(), (weight > 0.1).sum()


@pytest.mark.slow
def test_it_shows_the_emoji_that_it_is_asked_for(large):
    thumbnails, names = known()
    asked = ["red apple", "cat face", "rocket", "umbrella", "pizza", "soccer ball", "frog", "sunflower"]
    clips = draw(large, [f"{name} standing still" for name in asked], seed=100, steps=20)
    nearest = [names[np.square(thumbnails - cut_out(clip[0])).mean((1, 2, 3)).argmin()] for clip in clips]
    wrong = {name: found for name, found in zip(asked, nearest, strict=True) if name != found}
    assert len(wrong) <= 3, wrong


@pytest.mark.slow
def test_things_move_as_they_are_told(large):
    """The first and the last frame: where the object is, and how large."""
    told = ["rolling to the right", "rolling to the left", "taking off", "falling down", "growing", "shrinking"]
    clips = draw(large, [f"red apple {motion}" for motion in told], seed=7, steps=20)
    (right, left, up, down, grow, shrink) = [np.subtract(place(clip[-1]), place(clip[0])) for clip in clips]
    assert right[0] > 8 > -8 > left[0]
    assert down[1] > 8 > -8 > up[1]
    assert grow[2] > 100 > -100 > shrink[2]


def test_few_steps_fall_visibly_short_of_many(pipe):
    asked = models.prompts("tiny-wan", "evaluation")[:4]
    full, few = draw(pipe, asked, steps=25), draw(pipe, asked, steps=5)
    assert 12 < psnr(few, full) < 40


# what users of Wan do


def test_seeds_guidance_and_negative_prompts_change_the_clip(pipe):
    first = draw(pipe, "pizza spinning", seed=1)
    assert np.array_equal(draw(pipe, "pizza spinning", seed=1), first)
    others = [{"seed": 2}, {"guidance_scale": 1.0}, {"guidance_scale": 8.0}, {"negative_prompt": "red apple"}]
    for other in others:
        assert psnr(draw(pipe, "pizza spinning", **{"seed": 1} | other), first) < 50, other


def test_a_batch_shows_what_single_calls_show(pipe):
    both = draw(pipe, ["frog bouncing", "crown growing"], seed=5)
    assert psnr(both[0], draw(pipe, "frog bouncing", seed=5)) > 50
    assert psnr(both[1], draw(pipe, "crown growing", seed=6)) > 50


@pytest.mark.parametrize(("frames", "height", "width"), [(9, 64, 64), (13, 64, 64), (17, 64, 96), (9, 96, 64)])
def test_other_lengths_and_sizes_work(pipe, frames, height, width):
    made = draw(pipe, "sunflower swaying", num_frames=frames, height=height, width=width)
    assert made.shape == (frames, height, width, 3)
    assert np.isfinite(made).all()
    assert made.std() > 0.05


def test_padding_as_long_as_wans_own_shows_the_same_thing(pipe):
    """It was trained on both lengths."""
    short, long = (draw(pipe, "red apple growing", steps=10, max_sequence_length=n) for n in (16, 512))
    other = draw(pipe, "banana growing", steps=10)
    assert psnr(long, short) > psnr(other, short) + 3


def test_a_lora_changes_the_clip_until_it_is_unloaded(tmp_path):
    peft = pytest.importorskip("peft")
    pipe = opened("tiny-wan")
    before = draw(pipe, "owl swaying")
    pipe.transformer.add_adapter(peft.LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights="gaussian"))
    torch.manual_seed(0)
    weights = {
        name: torch.randn_like(value) * 0.2 for name, value in peft.get_peft_model_state_dict(pipe.transformer).items()
    }
    pipe.transformer.delete_adapters("default")
    diffusers.WanPipeline.save_lora_weights(tmp_path, transformer_lora_layers=weights)
    pipe.load_lora_weights(tmp_path)
    assert psnr(draw(pipe, "owl swaying"), before) < 40
    pipe.unload_lora_weights()
    assert np.array_equal(draw(pipe, "owl swaying"), before)


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda pipe: pickle.loads(pickle.dumps(pipe)),
        lambda pipe: type(pipe)(**pipe.components),
    ],
    ids=["deepcopy", "pickle", "components"],
)
def test_a_copy_shows_the_same(pipe, copied):
    again = aligned(copied(pipe))
    again.set_progress_bar_config(disable=True)
    assert np.array_equal(draw(again, "koala growing", steps=2), draw(aligned(pipe), "koala growing", steps=2))


def test_what_is_saved_and_loaded_shows_the_same(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    again = aligned(models.load(tmp_path))
    again.set_progress_bar_config(disable=True)
    assert type(again) is type(pipe)
    assert np.array_equal(draw(again, "koala growing", steps=2), draw(aligned(pipe), "koala growing", steps=2))


@pytest.mark.slow  # the decoder is slow in half precision on most CPUs
def test_it_loads_in_half_precision():
    half = opened("tiny-wan", dtype=torch.bfloat16)
    assert half.transformer.dtype == half.vae.dtype == half.text_encoder.dtype == torch.bfloat16
    assert np.isfinite(draw(half, "koala growing", steps=2)).all()


def test_a_part_of_it_can_be_left_out():
    assert models.load("tiny-wan", vae=None).vae is None


def test_a_policy_makes_exactly_its_calls_on_it(pipe):
    with budcache.applied(pipe, budcache.Policy(mask=budcache.Mask.parse("101001"))) as handle:
        draw(pipe, "koala growing", steps=6)
    assert handle.stats().last_run_calls == 3
