"""ComfyUI: a folder with a node and workflows; for plain policies workflows of ComfyUI's own nodes alone."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal, NamedTuple

from budcache.exports.base import Made, Target, Task, decimals, filled
from budcache.policy import Origin

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


# What ComfyUI calls the text encoders of models that have one, by the names of their pipelines in diffusers.
ENCODERS = {"Wan": "wan", "QwenImage": "qwen_image", "ZImage": "lumina2", "Lumina2": "lumina2"}
OTHER = "put the loaders that {} needs in the place of those in it: which they are is not known here."


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
        choose = "choose your models." if _is_flux(task) else OTHER.format(task.plain_pipeline)
        if not task.goes_by_rows:
            run = f"Open {{out}}/example_workflows/policy.json in ComfyUI (no custom node is needed) and {choose}"
            return Made(files, run)
        files["__init__.py"] = filled("comfyui.py.txt", header=task.header, policy=task.text)
        files["pyproject.toml"] = REGISTRY.format(header=task.header)
        start = "Put {out} into ComfyUI/custom_nodes, start ComfyUI"
        run = f"{start}, open {{out}}/example_workflows/policy.json and {choose}"
        return Made(files, run)


def _is_flux(task: Task) -> bool:
    origin = task.policy.origin
    return origin is None or origin.pipeline is None or origin.pipeline.startswith("Flux")


def _graph(task: Task) -> dict[str, Node]:
    """From a prompt to a picture or a clip: FLUX, or another model, whose guidance has two branches."""
    if task.goes_by_rows:
        policy = {"sampler": Node("BudcachePolicy", (), {"policy": task.text, "budget": 0}, ("SAMPLER", "SIGMAS"))}
        sampler, sigmas = ("sampler", "sampler", 0, "SAMPLER"), ("sigmas", "sampler", 1, "SIGMAS")
    else:
        policy = {
            "sampler": Node("KSamplerSelect", (), {"sampler_name": "euler"}, ("SAMPLER",)),
            "sigmas": Node("ManualSigmas", (), {"sigmas": ", ".join(decimals(task.short))}, ("SIGMAS",)),
        }
        sampler, sigmas = ("sampler", "sampler", 0, "SAMPLER"), ("sigmas", "sigmas", 0, "SIGMAS")
    run = (
        *(("noise", "noise", 0, "NOISE"), ("guider", "guider", 0, "GUIDER")),
        *(sampler, sigmas, ("latent_image", "latent", 0, "LATENT")),
    )
    pixels = (("samples", "run", 0, "LATENT"), ("vae", "vae", 0, "VAE"))
    return {
        **(_flux(task.policy.origin or Origin()) if _is_flux(task) else _guided(task.policy.origin or Origin())),
        "noise": Node("RandomNoise", (), {"noise_seed": 0}, ("NOISE",), ("fixed",)),
        "latent": _latent(task.policy.origin or Origin()),
        **policy,
        "run": Node("SamplerCustomAdvanced", run, gives=("LATENT", "LATENT")),
        "decode": Node("VAEDecode", pixels, gives=("IMAGE",)),
        "save": Node("SaveImage", (("images", "decode", 0, "IMAGE"),), {"filename_prefix": "budcache"}),
    }


def _flux(origin: Origin) -> dict[str, Node]:
    """FLUX's loaders; it is told its guidance. Where there is guidance between two prompts beside, both are."""
    weights = {"unet_name": "flux1-dev.safetensors", "weight_dtype": "default"}
    texts = {"clip_name1": "clip_l.safetensors", "clip_name2": "t5xxl_fp16.safetensors", "type": "flux"}
    nodes = {
        "model": Node("UNETLoader", (), weights, ("MODEL",)),
        "clip": Node("DualCLIPLoader", (), {**texts, "device": "default"}, ("CLIP",)),
        "vae": Node("VAELoader", (), {"vae_name": "ae.safetensors"}, ("VAE",)),
        "prompt": _text("red apple"),
        "guidance": _told("prompt", origin),
    }
    scale = _made_at(origin, "true_guidance")
    if scale is not None:
        second = {"negative": _text(""), "negative_guidance": _told("negative", origin)}
        return {**nodes, **second, "guider": _between("guidance", "negative_guidance", scale)}
    links = (("model", "model", 0, "MODEL"), ("conditioning", "guidance", 0, "CONDITIONING"))
    return {**nodes, "guider": Node("BasicGuider", links, gives=("GUIDER",))}


def _guided(origin: Origin) -> dict[str, Node]:
    """Another model, with its guidance between two prompts. Which loaders it has depends on it: these are a start."""
    weights = {"unet_name": "model.safetensors", "weight_dtype": "default"}
    kind = next((kind for name, kind in ENCODERS.items() if (origin.pipeline or "").startswith(name)), "sd3")
    scales = [_made_at(origin, name) for name in ("true_guidance", "guidance")]
    strength = next((scale for scale in scales if scale is not None), 1.0)
    texts = {"clip_name": "text_encoder.safetensors", "type": kind, "device": "default"}
    return {
        "model": Node("UNETLoader", (), weights, ("MODEL",)),
        "clip": Node("CLIPLoader", (), texts, ("CLIP",)),
        "vae": Node("VAELoader", (), {"vae_name": "vae.safetensors"}, ("VAE",)),
        "prompt": _text("red apple"),
        "negative": _text(""),
        "guider": _between("prompt", "negative", strength),
    }


def _between(positive: str, negative: str, scale: float) -> Node:
    """Guidance between two prompts, from the nodes that have them."""
    links = (("positive", positive, 0, "CONDITIONING"), ("negative", negative, 0, "CONDITIONING"))
    return Node("CFGGuider", (("model", "model", 0, "MODEL"), *links), {"cfg": scale}, ("GUIDER",))


def _told(prompt: str, origin: Origin) -> Node:
    """A prompt with the guidance that FLUX's network is told."""
    guidance = _made_at(origin, "guidance")
    links = (("conditioning", prompt, 0, "CONDITIONING"),)
    return Node("FluxGuidance", links, {"guidance": 3.5 if guidance is None else guidance}, ("CONDITIONING",))


def _made_at(origin: Origin, name: Literal["guidance", "true_guidance"]) -> float | None:
    """The scale that a policy was made at; of several the one in the middle."""
    ends = origin.ranges.get(name)
    scale: float | None = getattr(origin, name)
    return scale if ends is None else sum(ends) / 2


def _text(text: str) -> Node:
    return Node("CLIPTextEncode", (("clip", "clip", 0, "CLIP"),), {"text": text}, ("CONDITIONING",))


def _latent(origin: Origin) -> Node:
    size = {"width": origin.width or 1024, "height": origin.height or 1024}
    if origin.frames is None:
        return Node("EmptySD3LatentImage", (), {**size, "batch_size": 1}, ("LATENT",))
    return Node("EmptyHunyuanLatentVideo", (), {**size, "length": origin.frames, "batch_size": 1}, ("LATENT",))


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
