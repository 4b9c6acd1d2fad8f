"""Several threads: each gets the right picture or a sentence, never anything else."""

from __future__ import annotations

import itertools
import sys
import threading
import warnings
from collections.abc import Callable

import diffusers
import pytest
import torch
from helpers import flux, latents
from zoo import entry

import budcache
from budcache import Handle, PipelineError, Policy

BLENDED = Policy(mask="111010", weights=[[1.0], [1.3, -0.3], [1.1, 0.1, -0.2], [0.9, 0.3, -0.2]])
POLICIES = {
    "plain": Policy(mask="110100"),
    "blended": BLENDED,
    "residual": Policy(mask="110100", reuse="residual"),
    "midway": Policy(mask="110101"),
}
THREADS, ROUNDS = 4, 5


def at_once(work: Callable[[int], object], count: int = THREADS) -> list[object]:
    """What each of some threads returned or raised, all of them let go at the same moment."""
    barrier, found = threading.Barrier(count), [None] * count

    def run(number: int) -> None:
        barrier.wait()
        try:
            found[number] = work(number)
        except Exception as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def encoded(kind, pipe) -> dict[str, object]:
    """Arguments without a prompt: a tokenizer, too, is only for one thread at a time."""
    with torch.no_grad():
        embeds, pooled, _ = pipe.encode_prompt(prompt="a cat", prompt_2=None, max_sequence_length=16)
    return {"prompt": None, "prompt_embeds": embeds, "pooled_prompt_embeds": pooled}


def is_sentence(outcome: object) -> bool:
    return isinstance(outcome, PipelineError) and "two threads run this pipeline at once" in str(outcome)


@pytest.mark.parametrize("policy", POLICIES)
def test_four_threads_on_one_pipeline_get_the_right_picture_or_a_sentence(policy):
    kind = entry("flux-img2img" if policy == "midway" else "flux")
    pipe = kind.build()
    call = encoded(kind, pipe)
    with budcache.applied(pipe, POLICIES[policy]):
        right = [latents(kind, pipe, seed, **call) for seed in range(THREADS)]
        for _ in range(ROUNDS):
            found = at_once(lambda seed: latents(kind, pipe, seed, **call))
            drawn = [number for number, outcome in enumerate(found) if isinstance(outcome, torch.Tensor)]
            assert drawn, "the last to begin goes through"
            assert all(torch.equal(found[number], right[number]) for number in drawn)
            assert all(is_sentence(outcome) for number, outcome in enumerate(found) if number not in drawn), found
        assert torch.equal(latents(kind, pipe, 2, **call), right[2])


@pytest.mark.parametrize("policy", POLICIES)
def test_one_thread_after_the_other_is_fine(policy):
    kind = entry("flux-img2img" if policy == "midway" else "flux")
    pipe = kind.build()
    with budcache.applied(pipe, POLICIES[policy]) as handle:
        right = latents(kind, pipe)
        for _ in range(2):
            (drawn,) = at_once(lambda _: latents(kind, pipe), 1)
            assert torch.equal(drawn, right)
        assert torch.equal(latents(kind, pipe), right)
    assert handle.stats().runs == 4


class Waiting(diffusers.FluxPipeline):
    """Waits between its `set_timesteps` and its loop, where it makes its progress bar, if told to."""

    begun, go_on = threading.Event(), threading.Event()
    who = None

    def progress_bar(self, *args, **kwargs):
        if threading.current_thread() is self.who:
            self.begun.set()
            assert self.go_on.wait(60)
        return super().progress_bar(*args, **kwargs)


@pytest.mark.parametrize("policy", ["plain", "blended", "residual"])
def test_who_begins_his_loop_late_does_not_disturb_who_is_in_it(policy):
    """The first thread has said how many steps it wants; the second starts and is half through; the first goes on."""
    kind, pipe = flux()
    call = encoded(kind, pipe)
    pipe = Waiting(**pipe.components)
    pipe.set_progress_bar_config(disable=True)
    first: list[object] = []

    def late() -> None:
        try:
            first.append(latents(kind, pipe, 0, **call))
        except PipelineError as error:
            first.append(error)

    def let_the_first_go_on(_, step, t, kwargs):
        if step == 1:
            Waiting.go_on.set()
            thread.join(60)
        return {}

    with budcache.applied(pipe, POLICIES[policy]):
        right = latents(kind, pipe, 1, **call)
        Waiting.begun, Waiting.go_on = threading.Event(), threading.Event()
        thread = Waiting.who = threading.Thread(target=late)
        thread.start()
        assert Waiting.begun.wait(60)
        drawn = latents(kind, pipe, 1, callback_on_step_end=let_the_first_go_on, **call)
    assert is_sentence(first[0])
    assert torch.equal(drawn, right)


def test_of_four_threads_that_apply_a_policy_one_gets_a_handle():
    kind, pipe = flux()
    bare, original = latents(kind, pipe), pipe.scheduler
    for reuse in ("output", "residual", "output"):
        found = at_once(lambda _, reuse=reuse: budcache.apply(pipe, Policy(mask="110100", reuse=reuse)))
        (handle,) = [outcome for outcome in found if isinstance(outcome, Handle)]
        refused = [outcome for outcome in found if outcome is not handle]
        assert len(refused) == THREADS - 1
        assert all(isinstance(o, PipelineError) and "already carries a policy" in str(o) for o in refused)
        assert handle.is_active
        latents(kind, pipe)
        assert handle.stats().last_run_calls == 3
        handle.remove()
        assert pipe.scheduler is original
        assert torch.equal(latents(kind, pipe), bare)


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_a_pipeline_for_each_thread_as_the_sentence_advises(reuse):
    """They share all networks; one follows another policy, and one none."""
    kind, pipe = flux()
    call = encoded(kind, pipe)
    pipes = [pipe, *(type(pipe)(**pipe.components) for _ in range(2))]
    for each in pipes:
        each.set_progress_bar_config(disable=True)
    for each, mask in zip(pipes, ("110100", "101011"), strict=False):
        budcache.apply(each, Policy(mask=mask, reuse=reuse))
    pipes[2].scheduler = type(pipes[2].scheduler).from_config(pipes[2].scheduler.config)
    right = [latents(kind, each, seed, **call) for seed, each in enumerate(pipes)]
    for _ in range(ROUNDS):
        found = at_once(lambda seed: latents(kind, pipes[seed], seed, **call), 3)
        assert all(torch.equal(drawn, expected) for drawn, expected in zip(found, right, strict=True)), found
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(right, 2))


def test_policies_that_come_and_go_on_shared_networks_leave_them_as_they_were():
    """Residual reuse changes the transformer's lists of blocks, which all of these pipelines share."""
    kind, pipe = flux()
    pipes = [type(pipe)(**pipe.components) for _ in range(THREADS)]
    bare = latents(kind, pipe)
    before, often = sys.getswitchinterval(), 100

    def work(number: int) -> None:
        for _ in range(often):
            with budcache.applied(pipes[number], POLICIES["residual"]) as handle:
                handle.use(POLICIES["plain"])
                handle.use(POLICIES["residual"])

    sys.setswitchinterval(1e-6)
    try:
        assert at_once(work) == [None] * THREADS
    finally:
        sys.setswitchinterval(before)
    assert type(pipe.transformer.transformer_blocks) is torch.nn.ModuleList
    assert torch.equal(latents(kind, pipe), bare)


def test_of_two_threads_that_are_recorded_at_once_one_is_and_one_is_told():
    kind, pipe = flux()
    call = encoded(kind, pipe)
    with budcache.recording(pipe) as alone:
        right = [latents(kind, pipe, seed, **call) for seed in range(2)]
    (runs,) = alone
    known = runs.grams.products
    for _ in range(ROUNDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", budcache.BudcacheWarning)
            with budcache.recording(pipe) as record:
                found = at_once(lambda seed: latents(kind, pipe, seed, **call), 2)
        drawn = [number for number, outcome in enumerate(found) if isinstance(outcome, torch.Tensor)]
        assert drawn
        assert all(torch.equal(found[number], right[number]) for number in drawn)
        assert all(is_sentence(outcome) for number, outcome in enumerate(found) if number not in drawn), found
        (runs,) = record
        assert len(runs.grams.products) == len(drawn)
        assert all(any((matrix == one).all() for one in known) for matrix in runs.grams.products)
