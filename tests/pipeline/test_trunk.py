"""The interface to a transformer's trunk: a decider is asked once a call, and skipping is what it says."""

from __future__ import annotations

import copy
import gc
import threading
import traceback
import weakref

import pytest
import torch
from helpers import STEPS, flux, latents
from zoo import entry

import budcache
from budcache import PipelineError, Policy
from budcache.pipeline.trunk import SPLITS, Conductor, attach, blocks_of, detach, transformers, unknown

SKIP = {"skip_guidance_layers": [1], "skip_layer_guidance_start": 0.0, "skip_layer_guidance_stop": 1.0}
KINDS = ("flux", "flux-true-cfg", "wan-t2v-euler", "wan22", "z-image-cfg", "qwen-image", "sd3")


class Decider:
    """Runs the trunk, or repeats the last change that it made."""

    def __init__(self, probes=0, skip=False):
        self.probes, self.skip = probes, skip
        self.seen, self.kept = [], {}

    def decide(self, call):
        self.seen.append(call)
        return call.hidden + self.kept[call.key] if self.skip else None

    def computed(self, call, hidden):
        self.kept[call.key] = hidden - call.hidden


class Conducted:
    """A conductor on a pipeline, its one step open for the whole of a run, on whose transformers blocks are counted."""

    def __init__(self, pipe, decider):
        self.pipe, self.decider, self.conductor, self.ran = pipe, decider, Conductor(), []

    def __enter__(self):
        attach(self.pipe, self.conductor)
        self.hooks = [
            block.register_forward_pre_hook(lambda *_, index=index: self.ran.append(index))
            for transformer in transformers(self.pipe)
            for index, block in enumerate(blocks_of(transformer))
        ]
        self.conductor.open(self.decider)
        return self

    def __exit__(self, *exception):
        self.conductor.drop()
        detach(self.pipe, self.conductor)
        for hook in self.hooks:
            hook.remove()


@pytest.mark.parametrize("name", KINDS)
def test_a_trunk_that_is_let_run_changes_nothing_and_is_asked_about_once_a_call(name):
    kind = entry(name)
    pipe = kind.build()
    bare, decider = latents(kind, pipe), Decider()
    with Conducted(pipe, decider) as conducted:
        assert torch.equal(latents(kind, pipe), bare)
        conducted.conductor.close()
        assert torch.equal(latents(kind, pipe), bare)
    assert len(decider.seen) == STEPS * kind.branches == sum(conducted.conductor.calls.values())
    assert {call.transformer for call in decider.seen} == {id(transformer) for transformer in transformers(pipe)}
    for call in decider.seen:
        assert call.model in SPLITS
        assert call.hidden.ndim == 3


@pytest.mark.parametrize("probes", [0, 1, 2])
@pytest.mark.parametrize("name", ["flux", "wan-t2v-euler", "sd3"])
def test_a_skipped_trunk_runs_its_probes_only(name, probes):
    kind = entry(name)
    pipe = kind.build()
    blocks = len(blocks_of(pipe.transformer))
    decider = Decider(probes)
    with Conducted(pipe, decider) as conducted:
        first = latents(kind, pipe, num_inference_steps=1)
        assert conducted.ran == [*range(blocks)] * kind.branches
        decider.skip, conducted.ran[:] = True, []
        conducted.conductor.open(decider)  # the calls are counted from 0 again, so each finds its own residual
        again = latents(kind, pipe, num_inference_steps=1)
        assert conducted.ran == [*range(probes)] * kind.branches
    torch.testing.assert_close(again, first)  # what the same input did before is the same again
    for call in decider.seen:
        assert (call.probed is None) == (probes == 0)
        assert call.passed >= probes


def test_more_probes_than_blocks_are_refused():
    kind, pipe = flux()
    blocks = len(blocks_of(pipe.transformer))
    with (
        Conducted(pipe, Decider(blocks + 1)),
        pytest.raises(PipelineError, match=f"has {blocks} blocks, but {blocks + 1}"),
    ):
        latents(kind, pipe)


@pytest.mark.parametrize("skipped", [[0], [1]])
def test_a_pipeline_that_skips_an_end_of_its_trunk_is_told_so(skipped):
    kind = entry("sd3")
    pipe = kind.build()
    assert len(blocks_of(pipe.transformer)) == 2
    with Conducted(pipe, Decider()) as conducted, pytest.raises(PipelineError, match="skip_guidance_layers"):
        latents(kind, pipe, **{**SKIP, "skip_guidance_layers": skipped})
        conducted.conductor.close()


def refused(kind, pipe):
    with budcache.applied(pipe, Policy(mask="110100", reuse="residual")):
        try:
            latents(kind, pipe, **SKIP)
        except PipelineError as error:
            return error
    raise AssertionError("not refused")


def test_an_error_that_comes_again_is_another_one():
    """An exception that is raised again grows by the frames of every raise."""
    kind = entry("sd3")
    pipe = kind.build()
    errors = [refused(kind, pipe) for _ in range(3)]
    assert len({id(error) for error in errors}) == 3
    assert len({len(traceback.extract_tb(error.__traceback__)) for error in errors}) == 1


def test_an_error_keeps_no_tensors_once_it_is_dropped():
    kind = entry("sd3")
    pipe = kind.build()
    seen = []

    def keep(module, args, kwargs):
        seen.append(weakref.ref(kwargs["hidden_states"]))

    hook = pipe.transformer.register_forward_pre_hook(keep, with_kwargs=True)
    error = refused(kind, pipe)
    hook.remove()
    assert any(tensor() is not None for tensor in seen), "the pipeline's frame holds what the transformer was given"
    del error
    gc.collect()
    assert not any(tensor() is not None for tensor in seen)


def test_threads_have_conductors_of_their_own():
    import diffusers

    kind, pipe = flux()
    scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
    pipes = pipe, diffusers.FluxPipeline(**{**pipe.components, "scheduler": scheduler})
    pipes[1].set_progress_bar_config(disable=True)
    deciders, conductors, meeting = [Decider(), Decider()], [Conductor(), Conductor()], threading.Barrier(2)
    for each, conductor in zip(pipes, conductors, strict=True):
        attach(each, conductor)

    def run(number):
        conductors[number].open(deciders[number])
        meeting.wait(60)
        latents(kind, pipes[number], num_inference_steps=number + 2)
        meeting.wait(60)
        conductors[number].close()

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(decider.seen) for decider in deciders] == [2, 3]


def test_several_conductors_come_and_go_in_any_order():
    kind, pipe = flux()
    bare, lists = latents(kind, pipe), [type(module) for module in pipe.transformer.modules()]
    one, two = Conductor(), Conductor()
    attach(pipe, one)
    attach(pipe, two)
    detach(pipe, one)
    decider = Decider()
    two.open(decider)
    assert torch.equal(latents(kind, pipe), bare)
    two.close()
    detach(pipe, two)
    assert len(decider.seen) == STEPS
    assert [type(module) for module in pipe.transformer.modules()] == lists


def test_a_copied_pipeline_has_a_copied_conductor():
    _, pipe = flux()
    conductor = Conductor()
    attach(pipe, conductor)
    conductor.open(Decider())
    twin = copy.deepcopy(pipe.transformer)
    (other,) = twin.transformer_blocks.conductors
    assert other is not conductor
    assert not other.is_open
    assert twin.single_transformer_blocks.conductors == [other]


def test_what_is_not_known_is_named():
    assert unknown(entry("sana").build()) == "SanaTransformer2DModel"
    assert unknown(entry("flux").build()) is None


@pytest.mark.parametrize("name", KINDS)
def test_the_table_names_the_lists_that_diffusers_runs(name):
    """Every block of a trunk runs once a call, in the order of the table."""
    kind = entry(name)
    pipe = kind.build()
    with Conducted(pipe, Decider()) as conducted:
        latents(kind, pipe, num_inference_steps=1)
    blocks = len(blocks_of(pipe.transformer))
    assert conducted.ran == [*range(blocks)] * kind.branches
