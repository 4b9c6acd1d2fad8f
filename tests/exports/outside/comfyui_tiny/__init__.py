"""Nodes for the test: tiny-flux with two prompts and one noise, and a place to put the latents."""

from __future__ import annotations

import comfy.model_detection
import comfy.model_patcher
import comfy.utils
import torch
from safetensors.torch import load_file, save_file


class Given:
    """A noise that is given."""

    def __init__(self, noise):
        self.noise, self.seed = noise, 0

    def generate_noise(self, latent):
        return self.noise


class TinyFlux:
    """The model from diffusers' file, and what the pipeline made of a prompt and of a negative one."""

    RETURN_TYPES = ("MODEL", "CONDITIONING", "CONDITIONING", "NOISE", "LATENT")
    FUNCTION, CATEGORY = "load", "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"weights": ("STRING", {}), "prompt": ("STRING", {})}}

    def load(self, weights, prompt):
        state = comfy.model_detection.convert_diffusers_mmdit(comfy.utils.load_torch_file(weights), "")
        config = comfy.model_detection.model_config_from_unet(state, "")
        config.unet_config.update(axes_dim=[8, 12, 12], num_heads=6)
        config.set_inference_dtype(torch.float32, None)
        model = config.get_model(state, "")
        model.load_model_weights(state, "")
        cpu = torch.device("cpu")
        patcher = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
        found = load_file(prompt)
        both = [
            [[found[f"{name}_embeds"], {"pooled_output": found[f"{name}_pooled"]}]] for name in ("prompt", "negative")
        ]
        return patcher, *both, Given(found["noise"]), {"samples": torch.zeros_like(found["noise"])}


class TinySave:
    """Latents as the model had them."""

    RETURN_TYPES, OUTPUT_NODE = (), True
    FUNCTION, CATEGORY = "save", "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",), "samples": ("LATENT",), "file": ("STRING", {})}}

    def save(self, model, samples, file):
        save_file({"latents": model.model.process_latent_in(samples["samples"]).contiguous()}, file)
        return {}


NODE_CLASS_MAPPINGS = {"TinyFlux": TinyFlux, "TinySave": TinySave}
