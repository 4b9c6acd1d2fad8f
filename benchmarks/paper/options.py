"""The options that all experiments have."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch


def options(
    name: str, about: str, steps: int, evaluation: int, model: str = "tiny-flux", learn: int = 32
) -> argparse.ArgumentParser:
    """A parser with all of them; experiments add their own."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--model", default=model, help="an embedded name, a folder or a hub id")
    parser.add_argument("--lora", help="a LoRA on it: an embedded name, a file, a folder or a hub id")
    parser.add_argument("--lora-scale", type=float, default=1.0, help="how strongly it works")
    parser.add_argument("--steps", type=int, help=f"of the full run; default {steps}")
    parser.add_argument("--budgets", type=_numbers, help="model calls, such as 8,9,10")
    parser.add_argument("--prompts", type=Path, help="a file of prompts to measure on")
    parser.add_argument("--calibration", type=Path, help="one of others; default: the first third of --prompts")
    parser.add_argument("--evaluation", type=int, help=f"how many prompts to measure on; default {evaluation}")
    parser.add_argument("--learn", type=int, default=learn, help="how many prompts our search learns on")
    parser.add_argument("--tuning", type=int, help="how many prompts the others are tuned on; default: as many as ours")
    parser.add_argument("--timed", type=_methods, help="methods to time, or none; default: all, in a smoke run none")
    parser.add_argument("--height", type=int)
    parser.add_argument("--width", type=int)
    parser.add_argument("--frames", type=int, help="of a video")
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"))
    parser.add_argument("--batch", type=int, default=8, help="samples at once while searching")
    parser.add_argument("--metrics", type=lambda text: text.split(","), help="such as psnr,ssim,lpips,imagereward")
    parser.add_argument("--folder", type=Path, help=f"where results are kept; default out/paper/{name}")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its numbers mean nothing")
    return parser


def _methods(text: str) -> list[str]:
    return [] if text == "none" else text.split(",")


def _numbers(text: str) -> list[int]:
    return sorted({int(part) for part in text.split(",")})
