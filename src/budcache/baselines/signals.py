"""What TeaCache watches: how a model's input changes from step to step, as its first block sees it."""

from __future__ import annotations

from torch import Tensor

from budcache.baselines.base import Here

__all__ = ["PROJECTED", "signal"]

PROJECTED = ("WanTransformer3DModel",)  # whose signal has a projection


def signal(here: Here, projected: bool = False) -> Tensor:
    """The modulated input of the first block; for Wan, as published, the embedding of the time.

    Args:
        here: the trunk's entrance.
        projected: for Wan, the six-fold projection that the blocks are given (the published "ret-steps" variant).
    """
    block, hidden = here.block, here.hidden
    modulated: Tensor
    if here.model in PROJECTED:
        time = here.args[2] if projected else here.time
        assert isinstance(time, Tensor)
        return time
    if here.model == "QwenImageTransformer2DModel":
        first, _ = block.img_mod(here.kwargs["temb"]).chunk(2, dim=-1)
        modulated = block._modulate(block.img_norm1(hidden), first, here.kwargs.get("modulate_index"))[0]
    elif here.model == "ZImageTransformer2DModel":
        time = here.args[3] if len(here.args) > 3 else here.kwargs.get("adaln_input")
        if time is None:  # the variants that edit a picture modulate token by token
            return hidden
        scale: Tensor = block.adaLN_modulation(time).unsqueeze(1).chunk(4, dim=2)[0]
        modulated = block.attention_norm1(hidden) * (1 + scale)
    else:  # FLUX, SD3
        modulated = block.norm1(hidden, emb=here.kwargs["temb"])[0]
    return modulated
