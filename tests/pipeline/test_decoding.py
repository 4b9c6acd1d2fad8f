"""Decoding: any final latents as the pipeline's own pictures, without a call of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from diffusers import ModularPipeline
from helpers import flux, follow, opened
from torch.nn.modules.module import register_module_forward_pre_hook
from zoo import Entry, entry

from budcache import Mask, PipelineModel, Policy
from budcache.samples.batch import merge

STEPS = 3
FULL = Policy(mask=Mask.full(STEPS))
# One of each way to decode; that every kind is decoded right is in test_coverage.py.
NAMES = (
    *("flux", "flux-img2img", "wan-t2v", "sd3", "qwen-image", "z-image", "sdxl", "hunyuan-video", "ltx", "sana"),
    *("cogvideox", "chroma", "auraflow", "lumina2"),
)
DRIVEN = [entry(name) for name in NAMES]


def drawn(kind: Entry, pipe: object, seed: int = 0, **more: object) -> np.ndarray:
    """The pictures of a run of the pipeline itself."""
    call = {"num_inference_steps": STEPS, "output_type": "np", **kind.kwargs(), **more}
    output = pipe(generator=torch.Generator().manual_seed(seed), **call)
    if isinstance(pipe, ModularPipeline):
        output = [output.values.get("images", output.values.get("videos"))]
    return np.asarray(output[0])


@contextmanager
def evaluated(pipe: object) -> Iterator[set[str]]:
    """The parts of a pipeline's networks that are evaluated, down to the last layer: `vae.decoder`, `transformer`."""
    names = {
        id(module): f"{name}.{place}".strip(".")
        for name, network in pipe.components.items()
        if isinstance(network, torch.nn.Module)
        for place, module in network.named_modules()
    }
    seen: set[str] = set()
    hook = register_module_forward_pre_hook(lambda module, _: seen.add(names.get(id(module), "unknown")))
    try:
        yield seen
    finally:
        hook.remove()


@pytest.mark.parametrize("kind", DRIVEN, ids=lambda kind: kind.name)
def test_latents_are_decoded_as_the_pipeline_itself_does_and_nothing_else_is_evaluated(kind):
    pipe = kind.build()
    own = drawn(kind, pipe)
    with opened(kind, pipe, steps=STEPS) as model:
        x = follow(model, FULL)
        calls = model.calls
        with evaluated(pipe) as seen:
            pictures = model.decode(x)
        assert seen and all(name.startswith("vae.") for name in seen)
        assert not any("encoder" in name or ".quant_conv" in name for name in seen)
        assert np.array_equal(np.stack(pictures), own)
        assert model.calls == calls
        # The run is open, and goes on as if nothing had been.
        again = follow(model, FULL)
        assert torch.equal(again, x)
        # With a gradient, and for other latents.
        other = (x * 0.9).requires_grad_()
        found = model.decoded(other)
        assert np.array_equal(found.detach().numpy(), np.stack(model.decode(other.detach())))
        assert not np.array_equal(found.detach().numpy(), own)
        (slope,) = torch.autograd.grad(found.sum(), other)
        assert slope.isfinite().all() and (slope != 0).any()
        assert np.array_equal(np.stack(model.decode(x)), own)
    assert np.array_equal(drawn(kind, pipe), own)


@pytest.mark.parametrize("name", ["flux", "flux-img2img", "wan-t2v"])
@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_what_is_decoded_is_what_a_run_ends_with(name, reuse):
    kind = entry(name)
    pipe = kind.build()
    with opened(kind, pipe, steps=STEPS, reuse=reuse, output_type="np") as model:
        x = follow(model, Policy(mask="101", reuse=reuse))
        pictures = np.stack(model.decode(x))
        assert np.array_equal(pictures, np.asarray(model.finish(x)[0]))


def test_a_batch_is_decoded_sample_by_sample():
    kind, pipe = flux()
    samples = [
        {**kind.kwargs(), "prompt": prompt, "generator": torch.Generator().manual_seed(seed)}
        for seed, prompt in enumerate(["a cat", "two dogs"])
    ]
    with PipelineModel(pipe, steps=STEPS, **merge(samples)) as model:
        pictures = model.decode(follow(model, FULL))
        assert len(pictures) == 2 and model.decoded(model.noise).shape == (2, 32, 32, 3)
    for seed, sample in enumerate(samples):
        alone = drawn(kind, pipe, seed, prompt=sample["prompt"])
        np.testing.assert_allclose(pictures[seed], alone[0], atol=1e-5)


def test_the_gradient_is_that_of_finite_differences():
    kind, pipe = flux()
    for module in pipe.components.values():
        if isinstance(module, torch.nn.Module):
            module.requires_grad_(False).double()
    with opened(kind, pipe, steps=STEPS, grad=True) as model:
        x = (follow(model, FULL).double() * 0.5).requires_grad_()
        weights = torch.randn(1, 32, 32, 3, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
        way = torch.randn(x.shape, generator=torch.Generator().manual_seed(2), dtype=x.dtype)

        def value(x: torch.Tensor) -> torch.Tensor:
            return (model.decoded(x) * weights).sum()

        (slope,) = torch.autograd.grad(value(x), x)
        with torch.no_grad():
            expected = (value(x + 1e-4 * way) - value(x - 1e-4 * way)) / 2e-4
    torch.testing.assert_close((slope * way).sum(), expected, rtol=1e-3, atol=1e-6)


def test_latents_that_cannot_be_decoded_are_the_pipelines_own_error_and_leave_the_run_open():
    kind, pipe = flux()
    own = drawn(kind, pipe)
    with opened(kind, pipe, steps=STEPS) as model:
        x = follow(model, FULL)
        with pytest.raises((RuntimeError, ValueError)):
            model.decode(x[:, :-1])
        assert torch.is_grad_enabled()
        assert np.array_equal(np.stack(model.decode(x)), own)
        assert torch.equal(follow(model, FULL), x)


def test_samples_open_side_by_side_are_decoded_each_by_its_own_run():
    kind, pipe = flux()
    with opened(kind, pipe, 0, steps=STEPS) as one, opened(kind, pipe, 1, steps=STEPS, prompt="a dog") as two:
        ends = [follow(one, FULL), follow(two, FULL)]
        pictures = [model.decode(x)[0] for model, x in zip((one, two), ends, strict=True)]
    assert np.array_equal(pictures[0], drawn(kind, pipe, 0)[0])
    assert np.array_equal(pictures[1], drawn(kind, pipe, 1, prompt="a dog")[0])


def test_the_pipeline_keeps_its_own_networks():
    kind, pipe = flux()
    before = dict(pipe.components)
    with opened(kind, pipe, steps=STEPS) as model:
        model.decode(model.noise)
        assert all(pipe.components[name] is part for name, part in before.items())
        assert torch.is_grad_enabled()
    assert not any(parameter.grad is not None for parameter in pipe.vae.parameters())
