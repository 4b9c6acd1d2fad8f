"""Whole pipelines on another device than the CPU: all that is found and served there is what it is on the CPU."""

from __future__ import annotations

import pytest
import torch
from helpers import latents
from zoo import entry

import budcache
from budcache import Mask, Policy

STEPS, TEXTS = 6, ["a cat", "two dogs", "red"]


@pytest.fixture
def whole(device, monkeypatch):
    """The device, on which torch does not know operations of several results: here they are made of single ones."""

    def split(x, size, dim=0):
        whole = x.shape[dim]
        sizes = [min(size, whole - at) for at in range(0, whole, size)] if isinstance(size, int) else list(size)
        begins = [sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(x.narrow(dim, begin, length) for begin, length in zip(begins, sizes, strict=True))

    def chunk(x, chunks, dim=0):
        return split(x, -(-x.shape[dim] // chunks), dim)

    def unbind(x, dim=0):
        return tuple(x.select(dim, i) for i in range(x.shape[dim]))

    ours = {"split": split, "split_with_sizes": split, "chunk": chunk, "unbind": unbind}
    for name, function in ours.items():
        monkeypatch.setattr(torch.Tensor, name, function)
        monkeypatch.setattr(torch, name, function)
    monkeypatch.setattr(torch.Tensor, "__iter__", lambda x: iter(unbind(x)))
    return device


def here_and_there(kind, device, work):
    """What comes of a piece of work on a pipeline on the CPU, and on the device."""
    pipe = kind.build()
    mine = work(pipe)
    return mine, work(pipe.to(device))


@pytest.mark.slow
@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_a_search_and_what_is_served_of_it(whole, reuse):
    kind = entry("flux")
    shared = {name: value for name, value in kind.kwargs().items() if name != "prompt"}

    def work(pipe):
        ladder = budcache.search(pipe, steps=STEPS, budgets=[2], prompts=TEXTS, selection=1, reuse=reuse, call=shared)
        with budcache.applied(pipe, ladder, budget=2) as handle:
            drawn = latents(kind, pipe).cpu()
        assert handle.stats().last_run_calls == 2
        return ladder[2], drawn

    (mine, picture), (theirs, other) = here_and_there(kind, whole, work)
    assert mine.mask == theirs.mask
    assert mine.quality.psnr == pytest.approx(theirs.quality.psnr, abs=1e-2)
    assert mine.is_blended == theirs.is_blended == (reuse == "output")
    assert torch.allclose(picture, other, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, ((1.0,), (0.9, 0.1))])
def test_alignment_alone_and_jointly(whole, weights):
    kind = entry("flux")
    shared = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    start = Policy(mask=Mask.parse("100100"), weights=weights)

    def work(pipe):
        return budcache.align(pipe, start, prompts=TEXTS, selection=1, rate=1e-2, every=1, call=shared).rungs[0]

    mine, theirs = here_and_there(kind, whole, work)
    assert mine.sigmas == pytest.approx(theirs.sigmas, abs=1e-4)
    assert (mine.weights is None) == (weights is None)
