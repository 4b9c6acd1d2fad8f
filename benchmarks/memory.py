"""How much main memory a search takes beside the model, on latents as large as those of Wan2.1 1.3B at 832 x 480 x 81.

A real WanPipeline with UniPC and two-branch guidance, whose network and decoder cost nothing: a few operations for each
number of a latent. So what is measured is what budcache keeps: full runs, states, decoded clips. Printed are the most
that the process had in memory, less what it had once the pipeline was loaded, and what lay on disk.

Here the network runs in main memory, in a thread for each sample, and glibc keeps what a thread has freed. So the
script starts itself again with MALLOC_MMAP_THRESHOLD_ set, which gives large tensors back at once.

    python benchmarks/memory.py                          # the whole: 16 prompts, 10, 15 and 20 of 50 calls
    python benchmarks/memory.py --height 96 --width 160 --frames 17 --prompts 8 --budgets 5 --steps 12
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import Tensor, nn

import budcache
from budcache.events import Event, Progress
from budcache.numerics.shelf import Shelf

CHANNELS, TEXT = 16, (512, 4096)  # of Wan's latents, and of its text embeddings


class Cheap(diffusers.ModelMixin, ConfigMixin):
    """A velocity that bends with the sample, the time and the text, for a few operations a number."""

    @register_to_config
    def __init__(self, in_channels: int = CHANNELS, patch_size: tuple[int, ...] = (1, 2, 2)) -> None:
        super().__init__()
        self.scale = nn.Parameter(1 + 0.1 * torch.randn(in_channels, 1, 1, 1))

    def cache_context(self, *_: Any, **__: Any) -> Any:
        return nullcontext()

    def forward(
        self, hidden_states: Tensor, timestep: Tensor, encoder_hidden_states: Tensor, **_: Any
    ) -> tuple[Tensor, ...]:
        time, phase = timestep[0].float() / 1000, encoder_hidden_states.float().mean() * 100
        return (hidden_states * self.scale * (0.3 + time) - torch.sin(2 * hidden_states + phase),)


class CheapDecoder(diffusers.ModelMixin, ConfigMixin):
    """Three channels of the latents, as large as Wan's decoder makes them."""

    @register_to_config
    def __init__(
        self, z_dim: int = CHANNELS, scale_factor_temporal: int = 4, scale_factor_spatial: int = 8, **_: Any
    ) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(1))
        self.register_to_config(latents_mean=[0.0] * z_dim, latents_std=[1.0] * z_dim)

    def decode(self, latents: Tensor, return_dict: bool = False) -> tuple[Tensor]:
        frames, height, width = latents.shape[2:]
        time, side = self.config.scale_factor_temporal, self.config.scale_factor_spatial
        size = ((frames - 1) * time + 1, height * side, width * side)
        return (nn.functional.interpolate(latents[:, :3], size, mode="nearest"),)


def pipeline() -> Any:
    torch.manual_seed(0)
    scheduler = diffusers.UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    parts = {"tokenizer": None, "text_encoder": None, "transformer": Cheap(), "vae": CheapDecoder()}
    return diffusers.WanPipeline(scheduler=scheduler, **parts)


def embedded(number: int) -> Tensor:
    return torch.randn(1, *TEXT, generator=torch.Generator().manual_seed(number)).bfloat16()


def resident() -> int:
    """Bytes in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Watch:
    """Tells the phases, and the most that lay on disk."""

    def __init__(self) -> None:
        self.begin, self.disk = time.monotonic(), 0
        stock = Shelf._write

        def write(shelf: Shelf, *more: Any) -> None:
            stock(shelf, *more)
            self.disk = max(self.disk, shelf.written)

        Shelf._write = write  # type: ignore[method-assign]

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress):
            seconds = time.monotonic() - self.begin
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
            line = f"{seconds:6.0f} s  {resident() / 1e9:5.2f} GB, at most {most:5.2f}  {event.phase} {event.note}"
            print(f"{line}  {event.done}/{event.total}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=832)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--budgets", type=int, nargs="+", default=[10, 15, 20])
    parser.add_argument("--state-memory", default="2G")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    pipe, blank = pipeline(), embedded(0)
    pipe.set_progress_bar_config(disable=True)
    samples = [{"prompt_embeds": embedded(1 + i), "negative_prompt_embeds": blank} for i in range(options.prompts)]
    call = {"height": options.height, "width": options.width, "num_frames": options.frames}
    state = 4 * CHANNELS * ((options.frames - 1) // 4 + 1) * (options.height // 8) * (options.width // 8)
    watch, loaded, begin = Watch(), resident(), time.monotonic()
    ladder = budcache.search(
        pipe,
        steps=options.steps,
        budgets=options.budgets,
        samples=samples,
        call=call,
        state_memory=options.state_memory,
        progress=False,
        watch=watch,
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert ladder.searched is not None
    facts = {
        "state_bytes": state,
        "loaded_bytes": loaded,
        "peak_bytes_beside": peak - loaded,
        "disk_bytes": watch.disk,
        "sample_calls": ladder.searched.calls,
        "seconds": round(time.monotonic() - begin),
        "psnr": {rung.budget: round(rung.quality.psnr, 1) for rung in ladder if rung.quality and rung.quality.psnr},
    }
    print(json.dumps({**vars(options), **facts}))


if __name__ == "__main__":
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"})
    main()
