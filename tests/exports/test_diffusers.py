"""What is exported to diffusers, run by diffusers alone: in a process that cannot import budcache."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from diffusers import FluxPipeline

import budcache
from budcache import BudcacheError, PolicyError, models
from budcache.models.loras import Lora
from exports.policies import PROMPT, STEPS, drawn, levels, policies, run, stock

pytestmark = pytest.mark.xdist_group("exports to diffusers")  # all look at one run without budcache

WITHOUT_BUDCACHE = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "budcache":
            raise ImportError("budcache is not to be imported here")

sys.meta_path.insert(0, Blocked())
"""

PROGRAM = (
    WITHOUT_BUDCACHE
    + """
import importlib, json, pathlib
import torch
from diffusers import DiffusionPipeline

home, model, call, steps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])

def draw(pipe, steps=steps, **more):
    pipe.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    return pipe(**{**call, **more}, num_inference_steps=steps, output_type="latent", generator=generator).images

def refused(what):
    try:
        what()
    except Exception as error:
        return str(error)

found, said = {}, {}
pipe = DiffusionPipeline.from_pretrained(model)
own = pipe.scheduler
for name in ("plain", "levels", "weights", "rows", "features"):
    sys.path.insert(0, f"{home}/{name}")
    pipe.scheduler = importlib.import_module("policy_scheduler").PolicyScheduler.from_pretrained(f"{home}/{name}")
    found[name] = draw(pipe)
    found[f"{name}, larger"] = draw(pipe, height=128, width=128)
    sys.path.remove(f"{home}/{name}")
    del sys.modules["policy_scheduler"]
found["again"], found["two"] = draw(pipe), draw(pipe, num_images_per_prompt=2)
said["steps"] = refused(lambda: draw(pipe, steps=steps + 1))
pipe.scheduler = own
found["before"] = draw(pipe)
sys.path.insert(0, f"{home}/residual")
importlib.import_module("magcache").apply(pipe)
found["residual"] = draw(pipe)
found["residual again"] = draw(pipe)
pipe.transformer.disable_cache()
whole = DiffusionPipeline.from_pretrained(f"{home}/whole", trust_remote_code=True)
generator = torch.Generator().manual_seed(0)
printed = {"height": 64, "width": 64, "max_sequence_length": 12, "num_inference_steps": steps}
found["printed"] = whole("red apple", **printed, output_type="latent", generator=generator).images
said["class"] = type(whole.scheduler).__name__
found["whole"] = draw(whole)
names = {"DiffusionPipeline": DiffusionPipeline, "torch": torch}
exec(sys.argv[6].rpartition("; ")[0], names)  # the line as it was printed, but for the call
found["lora"] = draw(names["pipe"])
for name in ("tiny-wan", "tiny-wan-large"):
    clips = DiffusionPipeline.from_pretrained(f"{home}/{name}", trust_remote_code=True)
    clips.set_progress_bar_config(disable=True)
    generator = torch.Generator().manual_seed(0)
    found[name] = clips(**json.loads(sys.argv[5]), generator=generator).frames
said["trust"] = refused(lambda: DiffusionPipeline.from_pretrained(f"{home}/whole"))
said["budcache"] = [name for name in sys.modules if name.partition(".")[0] == "budcache"]
torch.save(found, f"{home}/found.pt")
pathlib.Path(home, "said.json").write_text(json.dumps(said))
"""
)


WANS = sorted(set(models.EMBEDDED) - {"tiny-flux"})
CLIPS = budcache.Policy(mask="1101")
CLIP = {"prompt": "red apple", "height": 32, "width": 32, "num_frames": 5, "num_inference_steps": 4}
CLIP |= {"output_type": "latent", "max_sequence_length": 16}


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """What diffusers makes of the exported folders, by itself."""
    home = tmp_path_factory.mktemp("exported")
    for name, policy in policies(levels()).items():
        if name != "guided":
            budcache.export(policy, "diffusers", home / name)
    made = budcache.export(policies(levels())["features"], "diffusers", home / "whole", pipeline="tiny-flux")
    assert made.run.endswith("(prompt, num_inference_steps=12, height=64, width=64, max_sequence_length=12)")
    for name in WANS:
        budcache.export(CLIPS, "diffusers", home / name, pipeline=name)
    turbo = {"lora": "turbo", "lora_scale": 0.5, "dtype": torch.float32}
    turbo = budcache.export(policies(levels())["features"], "diffusers", home / "turbo", pipeline="tiny-flux", **turbo)
    call = map(json.dumps, (PROMPT, STEPS, CLIP))
    command = [sys.executable, "-c", PROGRAM, home, models.folder("tiny-flux"), *call, turbo.run]
    # Code that is trusted is copied into a cache of diffusers; this one is ours, and nothing is asked of the network.
    alone = {**os.environ, "HF_MODULES_CACHE": str(home / "modules"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr
    return torch.load(home / "found.pt"), json.loads((home / "said.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "levels", "weights", "rows", "features"])
def test_at_another_size_it_draws_what_budcache_draws_there(outside, kind):
    """Also on noise levels of its own, which move as the pipeline's do."""
    expected = drawn(policies(levels())[kind], height=128, width=128)
    assert (outside[0][f"{kind}, larger"] - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("kind", ["plain", "levels", "weights", "rows", "features", "residual"])
def test_diffusers_alone_draws_what_budcache_draws(outside, kind):
    expected = drawn(policies(levels())[kind])
    assert (outside[0][kind] - expected).abs().max() <= 1e-5
    assert not torch.allclose(expected, outside[0]["before"], atol=1e-2)  # and not what the full run draws


def test_a_whole_pipeline_is_loaded_with_its_policy_if_it_is_trusted(outside):
    found, said = outside
    assert said["class"] == "PolicyScheduler"
    assert torch.equal(found["whole"], found["features"])
    assert "trust_remote_code=True" in said["trust"]
    assert said["budcache"] == []


def test_a_lora_is_written_along_with_its_scale(outside):
    pipe = FluxPipeline.from_pretrained(models.folder("tiny-flux"), local_files_only=True)
    pipe.set_progress_bar_config(disable=True)
    Lora.find("tiny-flux", "turbo", 0.5).load(pipe)
    expected = drawn(policies(levels())["features"].model_copy(update={"origin": None}), pipe)
    assert (outside[0]["lora"] - expected).abs().max() <= 1e-5
    assert (outside[0]["lora"] - outside[0]["whole"]).abs().max() > 1e-2


def test_a_pipeline_that_is_loaded_is_asked_and_left_as_it_is(tmp_path):
    pipe, policy = budcache.load("tiny-flux"), budcache.Policy(mask="1010")
    scheduler = pipe.scheduler
    named = budcache.export(policy, "sigmas", tmp_path / "named.json", pipeline="tiny-flux")
    asked = budcache.export(policy, "sigmas", tmp_path / "asked.json", pipeline=pipe)
    assert asked.path.read_text() == named.path.read_text()
    folder = budcache.export(policy, "diffusers", tmp_path / "folder", pipeline=pipe).path
    config = json.loads((folder / "scheduler_config.json").read_text())
    assert config["inner"]["_class_name"] == type(scheduler).__name__
    assert pipe.scheduler is scheduler
    with pytest.raises(BudcacheError, match="pipeline is 7"):
        budcache.export(policy, "sigmas", tmp_path / "x", pipeline=7)


@pytest.mark.parametrize("options", [{}, {"pipeline": "tiny-flux", "to": "sigmas"}])
def test_a_lora_belongs_to_a_whole_pipeline(options, tmp_path):
    with pytest.raises(PolicyError, match="belong to a whole pipeline"):
        budcache.export(policies()["plain"], out=tmp_path / "x", lora="turbo", **{"to": "diffusers", **options})


def test_what_is_printed_draws_what_the_embedded_model_draws(outside):
    """Which has a size and a length of texts of its own, that stock diffusers does not know."""
    pipe = budcache.load("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    with budcache.applied(pipe, policies(levels())["features"]):
        expected = pipe("red apple", output_type="latent", generator=torch.Generator().manual_seed(0)).images
    assert (outside[0]["printed"] - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("name", WANS)
def test_every_embedded_model_is_written_whole(outside, name):
    """Also those that share files with others."""
    pipe = budcache.load(name)
    pipe.set_progress_bar_config(disable=True)
    with budcache.applied(pipe, CLIPS):
        expected = pipe(**CLIP, generator=torch.Generator().manual_seed(0)).frames
    assert (outside[0][name] - expected).abs().max() <= 1e-5


def test_a_scheduler_can_be_used_again_and_on_batches(outside):
    found, said = outside
    assert torch.equal(found["again"], found["features"])
    assert (found["two"][:1] - found["features"]).abs().max() <= 1e-5
    assert torch.equal(found["residual again"], found["residual"])
    assert f"num_inference_steps={STEPS}" in said["steps"] and str(STEPS + 1) in said["steps"]


def test_made_up_ratios_are_residual_reuse_to_the_last_bit(tmp_path):
    policy, pipe = policies(levels())["residual"], stock()
    space: dict = {}
    exec((budcache.export(policy, "diffusers", tmp_path / "r").path / "magcache.py").read_text(), space)
    space["apply"](pipe)
    found = run(pipe)
    pipe.transformer.disable_cache()
    assert torch.equal(found, drawn(policy))


def test_the_scheduler_has_to_be_known(tmp_path):
    policy = budcache.Policy(mask="1010")
    with pytest.raises(PolicyError, match="--pipeline"):
        budcache.export(policy, "diffusers", tmp_path / "a")
    folder = budcache.export(policy, "diffusers", tmp_path / "b", pipeline="tiny-flux").path
    index = json.loads((folder / "model_index.json").read_text())
    assert index["scheduler"] == ["policy_scheduler", "PolicyScheduler"]
    config = json.loads((folder / "scheduler" / "scheduler_config.json").read_text())
    assert config["inner"]["_class_name"] == "FlowMatchEulerDiscreteScheduler"
