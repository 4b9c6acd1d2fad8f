"""The embedded model: that it is all there, runs as FLUX does, and draws what it is asked for."""

from __future__ import annotations

import copy
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from alignment import aligned
from diffusers import DiffusionPipeline, FluxImg2ImgPipeline, FluxPipeline
from PIL import Image, ImageOps

from budcache import models
from budcache.errors import PipelineError

HERE = Path(__file__).parent
FOLDER = Path(models.__file__).parent / "tiny-flux"


@pytest.fixture(scope="module")
def offline() -> Iterator[None]:
    """No connection can be opened, not even attempted."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        patch.setattr(socket, "getaddrinfo", refuse)
        yield


@pytest.fixture(scope="module")
def pipe(offline: None) -> FluxPipeline:
    pipe = models.load("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe, prompt, *, seed=0, steps=8, **settings) -> np.ndarray:
    """Pixels in [0, 1]; one seed per picture."""
    count = 1 if isinstance(prompt, str) else len(prompt)
    generators = [torch.Generator().manual_seed(seed + i) for i in range(count)]
    images = pipe(prompt, generator=generators, num_inference_steps=steps, output_type="np", **settings).images
    return images if count > 1 else images[0]


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(-10 * np.log10(np.square(a - b).mean() + 1e-12))


# what it is


def test_it_is_flux_in_float32(pipe):
    assert isinstance(pipe, FluxPipeline)
    assert type(pipe).__call__ is FluxPipeline.__call__
    assert pipe.transformer.config.guidance_embeds
    assert {p.dtype for part in (pipe.transformer, pipe.vae, pipe.text_encoder_2) for p in part.parameters()} == {
        torch.float32
    }


def test_the_scheduler_has_the_settings_of_flux_dev(pipe):
    config = pipe.scheduler.config
    assert (config.shift, config.use_dynamic_shifting, config.base_shift, config.max_shift) == (
        3.0,
        True,
        0.5,
        1.15,
    )
    assert (config.base_image_seq_len, config.max_image_seq_len) == (256, 4096)


def test_all_files_together_stay_under_16_megabytes_and_each_lora_under_2():
    sizes = {path: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()}
    loras = [size for path, size in sizes.items() if path.parent.name == "loras"]
    assert sum(sizes.values()) - sum(loras) <= 16_000_000
    assert all(size <= 2_000_000 for size in loras)


def test_the_prompt_sets_are_64_each_and_share_no_prompt():
    calibration, evaluation = (models.prompts("tiny-flux", split) for split in models.SPLITS)
    assert len(calibration) == len(evaluation) == 64
    assert len({*calibration, *evaluation}) == 128
    assert all(prompt == prompt.strip() and prompt for prompt in calibration + evaluation)


def test_every_prompt_is_made_of_words_it_knows(pipe):
    for prompt in models.prompts("tiny-flux", "calibration") + models.prompts("tiny-flux", "evaluation"):
        assert pipe.tokenizer_2.unk_token_id not in pipe.tokenizer_2(prompt).input_ids, prompt


# what it draws


def test_it_draws_what_it_is_asked_for(pipe):
    """Twenty prompts at FLUX.1-dev's settings, recognised among 100 emoji at 16 pixels."""
    names = (HERE / "thumbnails.txt").read_text().splitlines()
    sheet = np.asarray(Image.open(HERE / "thumbnails.png").convert("RGB"), dtype=np.float32) / 255
    known = sheet.reshape(10, 16, 10, 16, 3).swapaxes(1, 2).reshape(100, 16, 16, 3)
    asked = models.prompts("tiny-flux", "evaluation")[:20]
    assert names[:20] == asked
    made = draw(pipe, asked, seed=100, steps=28, guidance_scale=3.5)
    small = made.reshape(20, 16, 4, 16, 4, 3).mean((2, 4))
    either_way = [np.square(small[:, None] - side).mean((2, 3, 4)) for side in (known, known[:, :, ::-1])]
    nearest = np.minimum(*either_way).argmin(1)
    wrong = {asked[i]: names[n] for i, n in enumerate(nearest) if i != n}
    assert len(wrong) <= 3, wrong


def test_spelling_does_not_matter(pipe):
    plain = draw(pipe, "red apple")
    assert np.array_equal(draw(pipe, "RED  Apple"), plain)
    assert psnr(draw(pipe, "a red apple"), plain) > psnr(draw(pipe, "banana"), plain) + 3


def test_few_steps_fall_visibly_short_of_many(pipe):
    asked = models.prompts("tiny-flux", "evaluation")[20:28]
    full, five = draw(pipe, asked, steps=28), draw(pipe, asked, steps=5)
    assert 18 < psnr(five, full) < 38


# what one can do with it


def test_the_seed_decides_the_picture(pipe):
    first = draw(pipe, "pizza", seed=1)
    assert np.array_equal(draw(pipe, "pizza", seed=1), first)
    assert psnr(draw(pipe, "pizza", seed=2), first) < 40


def test_guidance_changes_the_picture(pipe):
    made = [draw(pipe, "rocket", guidance_scale=g) for g in (1.0, 3.5, 7.0)]
    assert psnr(made[0], made[1]) < 40
    assert psnr(made[1], made[2]) < 40
    assert np.array_equal(draw(pipe, "rocket"), made[1])  # 3.5 is the default


def test_a_batch_draws_what_single_calls_draw(pipe):
    both = draw(pipe, ["frog", "crown"], seed=5)
    assert psnr(both[0], draw(pipe, "frog", seed=5)) > 50
    assert psnr(both[1], draw(pipe, "crown", seed=6)) > 50


@pytest.mark.parametrize(("height", "width"), [(96, 64), (64, 128)])
def test_other_sizes_run(pipe, height, width):
    made = draw(pipe, "sunflower", height=height, width=width)
    assert made.shape == (height, width, 3)
    assert np.isfinite(made).all()
    assert made.std() > 0.05


def test_a_picture_can_start_from_a_picture(pipe):
    start = Image.fromarray((draw(pipe, "red apple", steps=28) * 255).astype(np.uint8))
    from_picture = FluxImg2ImgPipeline.from_pipe(pipe)
    from_picture.set_progress_bar_config(disable=True)

    def again(strength: float) -> np.ndarray:
        return draw(from_picture, "green apple", image=start, strength=strength, steps=20, height=64, width=64)

    original = np.asarray(start, dtype=np.float32) / 255
    assert psnr(again(0.2), original) > psnr(again(0.95), original)


def test_a_lora_changes_the_picture_until_it_is_unloaded(tmp_path):
    peft = pytest.importorskip("peft")
    pipe = models.load("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    before = draw(pipe, "owl")
    config = peft.LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights="gaussian")
    pipe.transformer.add_adapter(config)
    torch.manual_seed(0)
    weights = {
        name: torch.randn_like(value) * 0.2 for name, value in peft.get_peft_model_state_dict(pipe.transformer).items()
    }
    pipe.transformer.delete_adapters("default")
    FluxPipeline.save_lora_weights(tmp_path, transformer_lora_layers=weights)

    pipe.load_lora_weights(tmp_path, weight_name="pytorch_lora_weights.safetensors")
    assert psnr(draw(pipe, "owl"), before) < 40
    pipe.unload_lora_weights()
    assert np.array_equal(draw(pipe, "owl"), before)


def test_text_stays_short_in_every_pipeline_that_shares_it(pipe):
    for one in (pipe, FluxImg2ImgPipeline.from_pipe(pipe)):
        words, _, _ = one.encode_prompt("red apple", None)
        assert words.shape[1] == pipe.tokenizer_2.model_max_length


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda pipe: pickle.loads(pickle.dumps(pipe)),
        lambda pipe: type(pipe)(**pipe.components),
    ],
    ids=["deepcopy", "pickle", "components"],
)
def test_a_copy_draws_the_same(pipe, copied):
    again = aligned(copied(pipe))
    again.set_progress_bar_config(disable=True)
    assert np.array_equal(draw(again, "koala"), draw(aligned(pipe), "koala"))


def test_what_is_saved_and_loaded_draws_the_same(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    again = aligned(models.load(tmp_path))
    again.set_progress_bar_config(disable=True)
    assert type(again) is type(pipe)
    assert np.array_equal(draw(again, "koala"), draw(aligned(pipe), "koala"))


@pytest.mark.parametrize("loader", [FluxPipeline, DiffusionPipeline])
def test_what_is_saved_loads_as_plain_flux(pipe, tmp_path, loader):
    """Which draws 1024 pixels if it is told nothing: that number stands in its code, not in a file."""
    pipe.save_pretrained(tmp_path)
    again = aligned(loader.from_pretrained(tmp_path))
    again.set_progress_bar_config(disable=True)
    assert type(again) is FluxPipeline
    assert np.array_equal(draw(again, "koala", height=64, width=64), draw(aligned(pipe), "koala"))


def test_its_own_files_are_plain_flux(pipe):
    """So that other tools can read them, who must be told the length of its texts."""
    again = aligned(FluxPipeline.from_pretrained(FOLDER))
    again.set_progress_bar_config(disable=True)
    settings = {"height": 64, "width": 64, "max_sequence_length": pipe.tokenizer_2.model_max_length}
    assert np.array_equal(draw(again, "koala", **settings), draw(aligned(pipe), "koala"))


def test_a_part_of_it_can_be_left_out_or_replaced(pipe):
    without = models.load("tiny-flux", text_encoder_2=None, tokenizer_2=None)
    assert without.tokenizer_2 is None
    words, pooled, _ = pipe.encode_prompt("koala", None)
    without.set_progress_bar_config(disable=True)
    given = {"prompt_embeds": words, "pooled_prompt_embeds": pooled, "num_inference_steps": 2, "output_type": "np"}
    assert without(**given).images.shape == (1, 64, 64, 3)
    assert models.load("tiny-flux", vae=None).vae is None


def test_it_loads_in_half_precision(offline):
    half = models.load("tiny-flux", dtype=torch.bfloat16)
    assert half.transformer.dtype == half.vae.dtype == half.text_encoder_2.dtype == torch.bfloat16


def test_mirror_images_are_part_of_the_repertoire(pipe):
    """Both orientations were trained, so different seeds give both."""
    made = draw(pipe, ["rocket"] * 12, steps=12)
    gray = [Image.fromarray((m * 255).astype(np.uint8)).convert("L") for m in made]
    first = np.asarray(gray[0], dtype=float)
    same = [
        np.square(np.asarray(g, dtype=float) - first).mean()
        < np.square(np.asarray(ImageOps.mirror(g), dtype=float) - first).mean()
        for g in gray
    ]
    assert same.count(False) >= 1


# what can go wrong


@pytest.mark.parametrize("name", ["flux", "./nowhere", "/nowhere/at/all", "two words"])
def test_an_unknown_name_says_what_is_there(name):
    with pytest.raises(PipelineError, match=r"tiny-flux.*owner/name") as caught:
        models.load(name)
    assert name in str(caught.value)


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path):
    with pytest.raises(PipelineError, match=r"model_index\.json"):
        models.load(tmp_path)


def test_a_broken_folder_is_refused_with_one_sentence(tmp_path):
    (tmp_path / "model_index.json").write_text("{not json")
    with pytest.raises(PipelineError, match="cannot be read"):
        models.load(tmp_path)


def test_a_hub_that_cannot_be_reached_is_said_so(monkeypatch, tmp_path):
    from diffusers import DiffusionPipeline

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("Cannot load model owner/name: no network (details)\nmore details")

    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", unreachable)
    with pytest.raises(PipelineError, match=r"owner/name could not be downloaded \(.*no network\)") as caught:
        models.load("owner/name")
    assert "\n" not in str(caught.value)


def test_prompt_sets_that_are_not_there_are_refused():
    with pytest.raises(PipelineError, match="calibration or evaluation"):
        models.prompts("tiny-flux", "training")
    with pytest.raises(PipelineError, match="tiny-flux"):
        models.prompts("flux", "calibration")
