"""LoRAs by name: found, loaded, refused, and known to the policies that are made with them."""

from __future__ import annotations

import json
import shutil
import warnings

import pytest
import torch

import budcache
from budcache import Ladder, Policy, models
from budcache.errors import BudcacheWarning, PipelineError
from budcache.models import loras
from budcache.models.loras import Lora
from budcache.pipeline import describe
from budcache.provenance import same_adapters

pytest.importorskip("peft")

from loras import random_lora

TEXTS = models.prompts("tiny-flux", "calibration")[:4]
PROMPTS = [part for text in TEXTS for part in ("-p", text)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two LoRAs of the same form."""
    folder, pipe = tmp_path_factory.mktemp("loras"), models.load("tiny-flux")
    return [random_lora(folder / f"style-{seed}.safetensors", pipe, seed) for seed in (1, 2)]


@pytest.fixture
def home(files, tmp_path, monkeypatch):
    """Embedded LoRAs: `turbo` and `other`, whether or not the package has files of these names."""
    folder = tmp_path / "home" / "tiny-flux" / "loras"
    folder.mkdir(parents=True)
    for name, file in zip(("turbo", "other"), files, strict=True):
        shutil.copy(file, folder / f"{name}.safetensors")
    monkeypatch.setattr(loras, "HOME", tmp_path / "home")
    return folder


def drawn(pipe, steps=4):
    pipe.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    return pipe("owl", generator=generator, num_inference_steps=steps, output_type="latent").images


def one_line(answer):
    """What a command that worked said beside its result."""
    code, _, errors = answer
    assert code == 0, errors
    return " ".join(errors.split())


def ours(caught):
    return [str(warning.message) for warning in caught if issubclass(warning.category, BudcacheWarning)]


# Finding


def test_an_embedded_name_comes_first_and_others_are_files_folders_and_hub_ids(home, files, tmp_path):
    assert loras.embedded("tiny-flux") == ("other", "turbo")
    assert Lora.find("tiny-flux", "turbo") == Lora(str(home / "turbo.safetensors"), "turbo")
    assert Lora.find("some/model", files[0], 0.5) == Lora(str(files[0]), "style_1", 0.5)
    saved = tmp_path / "watercolour"
    saved.mkdir()
    shutil.copy(files[0], saved / "pytorch_lora_weights.safetensors")
    assert Lora.find("tiny-flux", saved).name == "watercolour"
    hyper = Lora.find("tiny-flux", "ByteDance/Hyper-SD/Hyper-FLUX.1-dev-8steps-lora.safetensors", 0.125)
    assert (hyper.source, hyper.file) == ("ByteDance/Hyper-SD", "Hyper-FLUX.1-dev-8steps-lora.safetensors")
    assert "." not in hyper.name  # which peft would refuse
    assert Lora.find("tiny-flux", "alimama-creative/FLUX.1-Turbo-Alpha").file is None


@pytest.mark.parametrize(
    ("lora", "scale", "says"),
    [
        ("turbo1", 1, "did you mean turbo? tiny-flux has other, turbo. Give a file"),
        ("./turbo", 1, "there is no LoRA './turbo'"),
        ("a b", 1, "tiny-flux has other, turbo"),
        ("turbo", float("nan"), "a finite number, got nan"),
        (None, 0.5, "scale of 0.5 was given, but no LoRA"),
    ],
)
def test_what_cannot_be_a_lora_is_refused_before_the_model_is_loaded(home, lora, scale, says, monkeypatch):
    monkeypatch.setattr(models, "_embedded", None)
    with pytest.raises(PipelineError) as error:
        models.load("tiny-flux", lora=lora, lora_scale=scale)
    assert says in str(error.value)


def test_a_folder_has_to_have_one(files, tmp_path):
    with pytest.raises(PipelineError, match=r"has none\. Name the file"):
        Lora.find("tiny-flux", tmp_path)
    with pytest.raises(PipelineError, match=r"has style-1\.safetensors, style-2\.safetensors\. Name the file"):
        Lora.find("tiny-flux", files[0].parent)


def test_without_peft_a_sentence_says_what_to_install(files, monkeypatch):
    monkeypatch.setattr(loras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PipelineError, match=r"needs peft.*pip install 'budcache\[lora\]'"):
        models.load("tiny-flux", lora=files[0])


def test_a_file_that_is_damaged_or_of_another_model_is_refused(tmp_path):
    from safetensors.torch import save_file

    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(PipelineError, match="cannot be loaded"):
        models.load("tiny-flux", lora=broken)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"unet.down.lora_A.weight": torch.zeros(1, 2), "unet.down.lora_B.weight": torch.zeros(2, 1)}, foreign)
    with pytest.raises(PipelineError, match="foreign"):
        models.load("tiny-flux", lora=foreign)


# Loading


def test_it_is_the_same_as_load_lora_weights(files):
    by_hand = models.load("tiny-flux")
    plain = drawn(by_hand)
    by_hand.load_lora_weights(files[0])
    loaded = models.load("tiny-flux", lora=files[0])
    assert torch.equal(drawn(loaded), drawn(by_hand)) and not torch.equal(drawn(loaded), plain)
    by_hand.set_adapters(["default_0"], [0.5])
    half = models.load("tiny-flux", lora=files[0], lora_scale=0.5)
    assert torch.equal(drawn(half), drawn(by_hand)) and not torch.equal(drawn(half), drawn(loaded))


def test_the_origin_knows_contents_and_scale(files):
    first = describe(models.load("tiny-flux", lora=files[0])).adapters
    again = describe(models.load("tiny-flux", lora=files[0], dtype=torch.bfloat16)).adapters
    half = describe(models.load("tiny-flux", lora=files[0], lora_scale=0.5)).adapters
    by_hand = models.load("tiny-flux")
    by_hand.load_lora_weights(files[0])
    assert first[0].startswith("style_1 (") and half == (f"{first[0]} at 0.5",)
    assert same_adapters(first, again) and same_adapters(first, describe(by_hand).adapters)  # another name
    assert not same_adapters(first, half) and not same_adapters(first, ())
    assert not same_adapters(first, describe(models.load("tiny-flux", lora=files[1])).adapters)
    assert same_adapters(first, ("style_1",)) and not same_adapters(first, ("style_2",))  # from before


# The warning


def a_lora_is_loaded(pipe, file):
    pipe.load_lora_weights(file, adapter_name="late")


def a_lora_is_fused_and_unloaded(pipe, file):
    pipe.load_lora_weights(file, adapter_name="late")
    pipe.fuse_lora()
    pipe.unload_lora_weights()


@pytest.mark.parametrize("change", [a_lora_is_loaded, a_lora_is_fused_and_unloaded])
def test_a_plain_policy_under_a_lora_is_warned_about(files, change):
    """Applied to the changed pipeline, and applied before the change: once each."""
    pipe = models.load("tiny-flux")
    policy = Policy(mask="1010", origin=describe(pipe))
    with budcache.applied(pipe, policy), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drawn(pipe)
        assert not ours(caught)
        change(pipe, files[0])
        for _ in range(2):
            drawn(pipe)
        assert len(ours(caught)) == 1 and "may not fit" in ours(caught)[0]
    with pytest.warns(BudcacheWarning, match="may not fit"):
        budcache.apply(pipe, policy).remove()


CHANGES = {
    "another scale": lambda pipe, other: pipe.set_adapters(["style_1"], [0.5]),
    "fused at another scale": lambda pipe, other: pipe.fuse_lora(lora_scale=0.5),
    "switched off": lambda pipe, other: pipe.disable_lora(),
    "unloaded": lambda pipe, other: pipe.unload_lora_weights(),
    "another one as well": lambda pipe, other: (
        pipe.load_lora_weights(other, adapter_name="more"),
        pipe.set_adapters(["style_1", "more"]),
    ),
    "another one instead": lambda pipe, other: (
        pipe.unload_lora_weights(),
        pipe.load_lora_weights(other, adapter_name="style_1"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_policy_made_with_a_lora_is_warned_about_without_it(files, change):
    pipe = models.load("tiny-flux", lora=files[0])
    policy = Policy(mask="1010", origin=describe(pipe))
    with budcache.applied(pipe, policy), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        drawn(pipe)
        assert not ours(caught)
        CHANGES[change](pipe, files[1])
        for _ in range(2):
            drawn(pipe)
        assert len(ours(caught)) == 1 and "adapters" in ours(caught)[0] and "style_1" in ours(caught)[0]
    with pytest.warns(BudcacheWarning, match="adapters"):
        budcache.apply(pipe, policy).remove()


def test_fused_as_it_was_searched_with_is_the_same_model(files):
    pipe = models.load("tiny-flux", lora=files[0])
    policy = Policy(mask="1010", origin=describe(pipe))
    apart = drawn(pipe)
    pipe.fuse_lora()
    assert torch.allclose(drawn(pipe), apart, atol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudcacheWarning)
        budcache.apply(pipe, policy).remove()


# The commands


@pytest.mark.slow
def test_a_lora_goes_through_search_fit_align_generate_and_compare(home, tmp_path, monkeypatch, run_here):
    monkeypatch.chdir(tmp_path)
    few = ["--steps", "4", "--lora", "turbo"]
    code, output, errors = run_here("search", "tiny-flux", "--budgets", "2,3", *few, *PROMPTS, "-o", "l.json")
    assert code == 0, errors
    assert "budcache generate tiny-flux --lora turbo --policy l.json" in output
    (adapter,) = Ladder.load("l.json").rungs[0].origin.adapters
    assert adapter.startswith("turbo (")
    for verb in ("fit", "align"):  # the file says which LoRA
        code, _, errors = run_here(verb, "l.json", "--budget", "2", *PROMPTS)
        assert code == 0, errors
        assert Ladder.load(f"l.{verb}.json").rungs[0].origin.adapters == (adapter,)
    draw = ["generate", "tiny-flux", "-p", "owl", "--policy", "l.json", "--budget", "2"]
    said = [one_line(run_here(*draw, *how)) for how in (few[2:], [*few[2:], "--lora-scale", "0.5"], [])]
    assert "may not fit" not in said[0]
    assert "at 0.5" in said[1] and "has: none" in said[2]
    how = ["--methods", "fewer-steps,uniform", "--timed", "none", "-n", "2", "--json"]
    code, output, errors = run_here("compare", "tiny-flux", "-b", "2", *few, *how, "--policy", "l.json")
    assert code == 0, errors
    assert not json.loads(output)["warnings"]
    assert json.loads((tmp_path / "comparison" / "comparison.json").read_text())["origin"]["adapters"] == [adapter]


def test_a_command_that_cannot_find_the_lora_says_so(home, tmp_path, monkeypatch, run_here):
    monkeypatch.chdir(tmp_path)
    for command in (["search", "-b", "2", "--dry-run"], ["generate", "-p", "owl"], ["compare", "-b", "2", "--dry-run"]):
        code, _, errors = run_here(command[0], "tiny-flux", *command[1:], "--lora", "turbine")
        assert code == 2 and "there is no LoRA 'turbine'; did you mean turbo?" in " ".join(errors.split())
    Policy(
        mask="1010",
        origin=describe(models.load("tiny-flux", lora="other")).model_copy(update={"adapters": ("mine (0123abcd)",)}),
    ).save("mine.json")
    code, _, errors = run_here("fit", "mine.json", *PROMPTS)
    assert code == 2 and "mine.json was made with adapters: mine (0123abcd). Name the LoRA with --lora." in " ".join(
        errors.split()
    )
