"""ComfyUI: a folder with a node and workflows; for plain policies workflows of ComfyUI's own nodes alone."""

from __future__ import annotations

import json
from typing import Any, ClassVar, NamedTuple

from budcache.exports.base import Made, Target, Task, decimals, filled

__all__ = ["ComfyUI"]

REGISTRY = """# {header}
[project]
name = "budcache-policy"
description = "Samples with a fixed number of model calls, as a budcache policy says."
version = "1.0.0"
license = {{ text = "Apache-2.0" }}
dependencies = []

[tool.comfy]
PublisherId = ""  # yours, to publish it in the registry
DisplayName = "Budcache Policy"
"""


class Node(NamedTuple):
    """A node of a workflow.

    Args:
        kind: its class.
        links: inputs that come from other nodes: name, node, place among that node's outputs, type.
        widgets: inputs that are values.
        gives: the types of its outputs.
        extra: values that only the editor keeps, behind the widgets.
    """

    kind: str
    links: tuple[tuple[str, str, int, str], ...] = ()
    widgets: dict[str, Any] = {}  # noqa: RUF012
    gives: tuple[str, ...] = ()
    extra: tuple[Any, ...] = ()


class ComfyUI(Target):
    """The node reads the text of any policy; the workflows have this one in them."""

    name: ClassVar[str] = "comfyui"
    about: ClassVar[str] = "a node pack with workflows; plain policies need ComfyUI's own nodes only"

    def make(self, task: Task) -> Made:
        """The pack, or the workflows alone."""
        decimals(task.short)
        graph = _graph(task)
        files = {
            "example_workflows/policy.json": json.dumps(_for_the_editor(graph, task.header), indent=1) + "\n",
            "example_workflows/policy-api.json": json.dumps(_for_the_server(graph, task.header), indent=1) + "\n",
        }
        if not task.goes_by_rows:
            run = (
                "Open {out}/example_workflows/policy.json in ComfyUI (no custom node is needed) and choose your models."
            )
            return Made(files, run)
        files["__init__.py"] = filled("comfyui.py.txt", header=task.header, policy=task.text)
        files["pyproject.toml"] = REGISTRY.format(header=task.header)
        run = (
            "Put {out} into ComfyUI/custom_nodes, start ComfyUI, open {out}/example_workflows/policy.json and choose "
            "your models."
        )
        return Made(files, run)


def _graph(task: Task) -> dict[str, Node]:
    """FLUX from a prompt to a picture; other models have other loaders in front."""
    origin = task.policy.origin
    width, height = (origin and origin.width) or 1024, (origin and origin.height) or 1024
    guidance = origin.guidance if origin is not None and origin.guidance is not None else 3.5
    if task.goes_by_rows:
        policy = {"sampler": Node("BudcachePolicy", (), {"policy": task.text, "budget": 0}, ("SAMPLER", "SIGMAS"))}
        sampler, sigmas = ("sampler", "sampler", 0, "SAMPLER"), ("sigmas", "sampler", 1, "SIGMAS")
    else:
        policy = {
            "sampler": Node("KSamplerSelect", (), {"sampler_name": "euler"}, ("SAMPLER",)),
            "sigmas": Node("ManualSigmas", (), {"sigmas": ", ".join(decimals(task.short))}, ("SIGMAS",)),
        }
        sampler, sigmas = ("sampler", "sampler", 0, "SAMPLER"), ("sigmas", "sigmas", 0, "SIGMAS")
    weights = {"unet_name": "flux1-dev.safetensors", "weight_dtype": "default"}
    texts = {"clip_name1": "clip_l.safetensors", "clip_name2": "t5xxl_fp16.safetensors", "type": "flux"}
    told = ("conditioning", "prompt", 0, "CONDITIONING")
    run = (
        *(("noise", "noise", 0, "NOISE"), ("guider", "guider", 0, "GUIDER")),
        *(sampler, sigmas, ("latent_image", "latent", 0, "LATENT")),
    )
    pixels = (("samples", "run", 0, "LATENT"), ("vae", "vae", 0, "VAE"))
    return {
        "model": Node("UNETLoader", (), weights, ("MODEL",)),
        "clip": Node("DualCLIPLoader", (), {**texts, "device": "default"}, ("CLIP",)),
        "vae": Node("VAELoader", (), {"vae_name": "ae.safetensors"}, ("VAE",)),
        "prompt": Node("CLIPTextEncode", (("clip", "clip", 0, "CLIP"),), {"text": "red apple"}, ("CONDITIONING",)),
        "guidance": Node("FluxGuidance", (told,), {"guidance": guidance}, ("CONDITIONING",)),
        "guider": Node(
            "BasicGuider",
            (("model", "model", 0, "MODEL"), ("conditioning", "guidance", 0, "CONDITIONING")),
            gives=("GUIDER",),
        ),
        "noise": Node("RandomNoise", (), {"noise_seed": 0}, ("NOISE",), ("fixed",)),
        "latent": Node("EmptySD3LatentImage", (), {"width": width, "height": height, "batch_size": 1}, ("LATENT",)),
        **policy,
        "run": Node("SamplerCustomAdvanced", run, gives=("LATENT", "LATENT")),
        "decode": Node("VAEDecode", pixels, gives=("IMAGE",)),
        "save": Node("SaveImage", (("images", "decode", 0, "IMAGE"),), {"filename_prefix": "budcache"}),
    }


def _for_the_server(graph: dict[str, Node], header: str) -> dict[str, Any]:
    """The workflow as `POST /prompt` takes it."""
    found: dict[str, Any] = {}
    for name, node in graph.items():
        inputs = {**node.widgets, **{link: [source, place] for link, source, place, _ in node.links}}
        found[name] = {"class_type": node.kind, "inputs": inputs, "_meta": {"title": node.kind}}
    found["save"]["_meta"]["title"] = f"SaveImage ({header})"
    return found


def _for_the_editor(graph: dict[str, Node], header: str) -> dict[str, Any]:
    """The workflow as the editor opens it."""
    ids = {name: number for number, name in enumerate(graph, 1)}
    links: list[list[Any]] = []
    into: dict[tuple[str, str], int] = {}
    for name, node in graph.items():
        for place, (link, source, output, kind) in enumerate(node.links):
            links.append([len(links) + 1, ids[source], output, ids[name], place, kind])
            into[name, link] = len(links)
    nodes = []
    for order, (name, node) in enumerate(graph.items()):
        outputs = [
            {"name": kind, "type": kind, "links": [link[0] for link in links if link[1:3] == [ids[name], place]]}
            for place, kind in enumerate(node.gives)
        ]
        nodes.append(
            {
                "id": ids[name],
                "type": node.kind,
                "pos": [40 + 340 * (order // 3), 60 + 260 * (order % 3)],
                "size": [300, 200],
                "flags": {},
                "order": order,
                "mode": 0,
                "inputs": [{"name": link, "type": kind, "link": into[name, link]} for link, _, _, kind in node.links],
                "outputs": outputs,
                "properties": {"Node name for S&R": node.kind},
                "widgets_values": [*node.widgets.values(), *node.extra],
            }
        )
    ends = {"last_node_id": len(nodes), "last_link_id": len(links)}
    rest = {"groups": [], "config": {}, "extra": {"info": header}, "version": 0.4}
    return {**ends, "nodes": nodes, "links": links, **rest}
