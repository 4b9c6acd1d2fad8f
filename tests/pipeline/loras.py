"""Small random LoRAs, as files that `load_lora_weights` reads."""

from __future__ import annotations

from pathlib import Path

import torch


def random_lora(path: Path, pipe, seed: int = 0, size: float = 0.1) -> Path:
    """Write a LoRA for a pipeline's transformer; the pipeline is left as it was."""
    from peft import LoraConfig, get_peft_model_state_dict
    from safetensors.torch import save_file

    config = LoraConfig(r=4, lora_alpha=4, target_modules=["to_q", "to_v", "proj_out"], init_lora_weights=False)
    pipe.transformer.add_adapter(config, adapter_name="random")
    generator = torch.Generator().manual_seed(seed)
    weights = {
        f"transformer.{name}": size * torch.randn(value.shape, generator=generator)
        for name, value in get_peft_model_state_dict(pipe.transformer, adapter_name="random").items()
    }
    pipe.transformer.unload_lora()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path)
    return path
