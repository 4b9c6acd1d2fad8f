"""The LoRA that makes tiny-flux a model of eight steps: it is there, loads as any other, and does what it is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from budcache import models
from budcache.models import loras

pytest.importorskip("peft")

FILE = Path(loras.HOME) / "tiny-flux" / "loras" / "turbo.safetensors"
TEXTS = models.prompts("tiny-flux", "evaluation")[:32]
SEED = 90_000  # of the benchmarks; pictures differ by several dB, so a few of them would tell nothing
NEARER = 1.0  # dB at least on these few prompts; the card has the figure of 64


def drawn(pipe, steps):
    pipe.set_progress_bar_config(disable=True)
    seeds = [torch.Generator().manual_seed(SEED + number) for number in range(len(TEXTS))]
    return pipe(TEXTS, generator=seeds, num_inference_steps=steps, output_type="np").images


def ratios(pictures, others):
    return -10 * np.log10(np.square(pictures - others).mean((1, 2, 3)) + 1e-12)


@pytest.fixture(scope="module")
def plain():
    return models.load("tiny-flux")


def test_it_is_shipped_and_small():
    assert loras.embedded("tiny-flux") == ("turbo",)
    assert FILE.stat().st_size <= 2_000_000


def test_by_name_it_is_what_diffusers_makes_of_its_file(plain):
    by_name, by_hand = models.load("tiny-flux", lora="turbo"), models.load("tiny-flux")
    by_hand.load_lora_weights(str(FILE))
    assert np.abs(drawn(by_name, 2) - drawn(by_hand, 2)).max() < 1e-4
    assert np.abs(drawn(by_name, 2) - drawn(plain, 2)).max() > 1e-2


@pytest.mark.slow
def test_eight_steps_with_it_are_nearer_to_the_full_run_than_eight_without(plain):
    full, turbo = drawn(plain, 28), models.load("tiny-flux", lora="turbo")
    gained = ratios(drawn(turbo, 8), full) - ratios(drawn(plain, 8), full)
    assert gained.mean() > NEARER
