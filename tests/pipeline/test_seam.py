"""The seam: a pipeline driven from outside, and left as it was, whatever happens."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from helpers import STEPS, counted, flux, follow, latents, opened, rolled
from zoo import entry

from budcache import Mask, PipelineError, PipelineModel, Policy
from budcache.numerics.rollout import rollout
from budcache.numerics.solvers import euler
from budcache.pipeline import frozen
from budcache.plan import Plan
from budcache.samples.batch import merge

FULL = Policy(mask=Mask.full(STEPS))


def seam_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "budcache-pipeline"]


def no_seam_thread_left() -> bool:
    for _ in range(200):  # a thread that was told to end needs a moment
        if not seam_threads():
            return True
        time.sleep(0.05)
    return False


def test_prompts_are_encoded_once_and_calls_are_counted():
    kind, pipe = flux()
    encoded = []
    hook = pipe.text_encoder_2.register_forward_pre_hook(lambda *_: encoded.append(1))
    with opened(kind, pipe) as model, counted(kind, pipe) as calls:
        first = model.calls
        for text in ("110100", "101010", "100001"):
            follow(model, Policy(mask=text))
        # Opening evaluated the first step; every rollout begins there, so it is not evaluated again.
        assert first == 1 and model.calls == 1 + len(calls) == 1 + 2 + 2 + 1
    hook.remove()
    assert len(encoded) == 1


def test_the_first_level_away_from_the_first_sample_is_a_call_of_its_own():
    kind, pipe = flux()
    with opened(kind, pipe) as model:
        v, _ = model.compute(model.noise, model.sigmas[0])
        elsewhere, _ = model.compute(model.noise * 0.5, model.sigmas[0])
        again, _ = model.compute(model.noise.clone(), model.sigmas[0])
        assert model.calls == 2
    assert torch.equal(v, again) and not torch.equal(v, elsewhere)


def test_pure_euler_gives_the_pipelines_own_latents_bit_for_bit():
    kind, pipe = flux()
    with opened(kind, pipe) as model:
        end = rollout(model, model.noise, Plan.of(FULL, model.sigmas), euler)
        assert torch.equal(model.finish(end)[0], latents(kind, pipe))


def test_finishing_decodes_what_it_is_given():
    kind, pipe = flux()
    image = pipe(
        num_inference_steps=STEPS, generator=torch.Generator().manual_seed(0), output_type="np", **kind.kwargs()
    ).images
    with opened(kind, pipe, output_type="np") as model:
        x = follow(model, FULL)
        assert (model.finish(x).images == image).all()
    with pytest.raises(PipelineError, match="closed"):
        model.compute(model.noise * 2, model.sigmas[1])


def test_a_batch_is_its_samples():
    kind, pipe = flux()
    samples = [
        {**kind.kwargs(), "prompt": prompt, "generator": torch.Generator().manual_seed(seed)}
        for seed, prompt in enumerate(["a cat", "two dogs", "a red apple"])
    ]
    policy = Policy(mask="110100")
    with PipelineModel(pipe, steps=STEPS, **merge(samples)) as model:
        assert len(model.noise) == 3
        together = follow(model, policy)
    for number, sample in enumerate(samples):
        single = rolled(kind, pipe, policy, seed=number, prompt=sample["prompt"])
        torch.testing.assert_close(together[number : number + 1], single)


def test_samples_that_cannot_be_one_batch_are_refused():
    with pytest.raises(PipelineError, match="height is 64 in sample 0 but 32 in sample 1"):
        merge([{"prompt": "a", "height": 64}, {"prompt": "b", "height": 32}])
    with pytest.raises(PipelineError, match="'width'"):
        merge([{"prompt": "a"}, {"prompt": "b", "width": 8}])
    with pytest.raises(PipelineError, match="shape"):
        merge([{"prompt_embeds": torch.zeros(1, 3)}, {"prompt_embeds": torch.zeros(1, 4)}])
    with pytest.raises(PipelineError, match="no samples"):
        merge([])
    merged = merge([{"prompt": "a", "latents": torch.zeros(1, 2)}, {"prompt": "a", "latents": torch.ones(1, 2)}])
    assert merged["prompt"] == ["a", "a"] and merged["latents"].shape == (2, 2)


def test_any_keyword_arguments_of_the_pipeline_may_be_a_sample():
    _, pipe = flux()
    embeds, pooled, _ = pipe.encode_prompt(prompt="a cat", prompt_2=None, max_sequence_length=16)
    given = {"prompt_embeds": embeds, "pooled_prompt_embeds": pooled, "height": 48, "width": 32, "guidance_scale": 2.0}
    call = {"num_inference_steps": STEPS, "output_type": "latent", **given}
    bare = pipe(generator=torch.Generator().manual_seed(3), **call)[0]
    with PipelineModel(pipe, steps=STEPS, generator=torch.Generator().manual_seed(3), **given) as model:
        assert torch.equal(follow(model, FULL), bare)


def test_several_models_of_one_pipeline_are_open_side_by_side():
    kind, pipe = flux()
    with opened(kind, pipe, 0, reuse="residual") as one, opened(kind, pipe, 1, reuse="residual") as two:
        states = [model.noise for model in (one, two)]
        memos: list[object] = [None, None]
        for k, compute in enumerate(Mask.parse("110100")):
            for i, model in enumerate((one, two)):  # turn and turn about
                sigma, nxt = model.sigmas[k], model.sigmas[k + 1]
                if compute:
                    v, memos[i] = model.compute(states[i], sigma)
                else:
                    v = model.reuse(states[i], sigma, memos[i])
                states[i] = euler(states[i], v, sigma, nxt)[0]
    policy = Policy(mask="110100", reuse="residual")
    for seed, x in enumerate(states):
        assert torch.equal(x, rolled(kind, pipe, policy, seed))


@pytest.mark.parametrize("name", ["flux", "wan-t2v-euler", "sd3", "z-image"])
def test_gradients_in_x_and_sigma_agree_with_finite_differences(name):
    kind = entry(name)
    pipe = kind.build()
    for module in pipe.components.values():
        if isinstance(module, torch.nn.Module):
            module.requires_grad_(False).double()
    with opened(kind, pipe, grad=True) as model:
        x = model.noise.detach().double()
        direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)
        sigma = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
        x.requires_grad_(True)

        def value(x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            return (model.compute(x, sigma)[0].double() ** 2).mean()

        by_x, by_sigma = torch.autograd.grad(value(x, sigma), (x, sigma))
        step, tick = 1e-3, 3e-5  # the model sees a thousand times sigma, and oscillates in it
        with torch.no_grad():
            around = [value((x + s * direction).detach(), sigma.detach()) for s in (step, -step)]
            across = [value(x.detach(), (sigma + s).detach()) for s in (tick, -tick)]
    assert by_sigma.abs() > 0 and by_x.abs().max() > 0
    torch.testing.assert_close((by_x * direction).sum(), (around[0] - around[1]) / (2 * step), rtol=2e-2, atol=1e-8)
    torch.testing.assert_close(by_sigma, (across[0] - across[1]) / (2 * tick), rtol=5e-2, atol=1e-8)


def test_a_pipeline_that_writes_its_samples_into_a_tensor_of_its_own_has_gradients_from_the_first_call_on():
    kind = entry("kandinsky5-t2v")
    pipe = kind.build()
    with frozen(pipe), opened(kind, pipe, grad=True) as model:
        x, sigma = model.noise.clone().requires_grad_(), model.sigmas[1]
        way = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

        def value(x: torch.Tensor) -> torch.Tensor:
            return (model.compute(x, sigma)[0] ** 2).mean()

        (slope,) = torch.autograd.grad(value(x), x)
        around = [value((x + step * way).detach()) for step in (1e-2, -1e-2)]
    torch.testing.assert_close((slope * way).sum(), (around[0] - around[1]) / 2e-2, rtol=2e-2, atol=1e-8)


def test_without_gradients_nothing_is_recorded():
    kind, pipe = flux()
    with opened(kind, pipe) as model:
        assert not model.compute(model.noise.clone().requires_grad_(True), model.sigmas[1])[0].requires_grad


def test_an_exception_in_the_pipeline_reaches_the_caller_and_ends_the_thread():
    kind, pipe = flux()
    bare = latents(kind, pipe)
    hook = pipe.transformer.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        opened(kind, pipe)
    hook.remove()
    assert no_seam_thread_left()
    with opened(kind, pipe, reuse="residual") as model:
        hook = pipe.transformer.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyError("later")))
        with pytest.raises(KeyError, match="later"):
            model.compute(model.noise * 0.5, model.sigmas[1])
        hook.remove()
        with pytest.raises(PipelineError, match="closed"):
            model.compute(model.noise * 0.5, model.sigmas[1])
    assert no_seam_thread_left()
    assert torch.equal(latents(kind, pipe), bare)


def test_a_wrong_argument_is_the_pipelines_own_error():
    kind, pipe = flux()
    with pytest.raises(TypeError, match="brightness"):
        opened(kind, pipe, brightness=3)
    assert no_seam_thread_left()


def test_stopping_early_and_forgetting_to_close_leave_nothing_behind():
    kind, pipe = flux()
    bare, attributes = latents(kind, pipe), dict(vars(pipe))
    with opened(kind, pipe) as model:
        model.compute(model.noise * 0.9, model.sigmas[2])
    forgotten = opened(kind, pipe, reuse="residual")
    forgotten.compute(forgotten.noise * 0.9, forgotten.sigmas[1])
    assert len(seam_threads()) == 1
    del forgotten
    gc.collect()
    assert no_seam_thread_left()
    assert vars(pipe) == attributes
    assert torch.equal(latents(kind, pipe), bare)


INTERRUPTED = """
import os, signal, sys, threading, time
sys.path.insert(0, {folder!r})
import torch
torch.set_num_threads(1)
from helpers import flux, opened, latents
from budcache import PipelineError
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
kind, pipe = flux()
bare = latents(kind, pipe)
model = opened(kind, pipe)
slow = pipe.transformer.register_forward_pre_hook(lambda *_: time.sleep(1.0))
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    model.compute(model.noise * 0.5, model.sigmas[1])
except KeyboardInterrupt:
    print("interrupted")
slow.remove()
try:
    model.compute(model.noise, model.sigmas[2])
except PipelineError as error:
    print(error)
for _ in range(100):
    left = [thread for thread in threading.enumerate() if "budcache" in thread.name]
    if not left:
        break
    time.sleep(0.05)
print("threads", len(left), torch.equal(latents(kind, pipe), bare))
model = opened(kind, pipe)  # left open on purpose: the interpreter must still end
"""


@pytest.mark.slow
def test_ctrl_c_in_a_real_process(request):
    code = INTERRUPTED.format(folder=str(request.path.parent))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "interrupted" in done.stdout and "closed" in done.stdout and "threads 0 True" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")
def test_a_forked_process_is_told_that_the_pipelines_thread_is_not_in_it():
    kind, pipe = flux()
    with opened(kind, pipe) as model:
        child = os.fork()
        if not child:
            try:
                signal.alarm(60)  # it would wait for ever
                model.compute(model.noise + 1, model.sigmas[1])
            except PipelineError as error:
                model.close()
                os._exit(0 if "was forked" in str(error) else 2)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        model.compute(model.noise + 1, model.sigmas[1])


def test_a_pipeline_with_a_policy_cannot_be_opened():
    import budcache

    kind, pipe = flux()
    with budcache.applied(pipe, Policy(mask="110100")), pytest.raises(PipelineError, match="remove"):
        opened(kind, pipe)


def test_a_pipeline_that_copies_its_scheduler_is_refused_with_a_sentence():
    import copy

    import diffusers

    class Duet(diffusers.FluxPipeline):
        """As pipelines with sound do."""

        def prepare_latents(self, *args, **kwargs):
            copy.deepcopy(self.scheduler)
            return super().prepare_latents(*args, **kwargs)

    kind, pipe = flux()
    duet = Duet(**pipe.components)
    with pytest.raises(PipelineError, match="copies its scheduler"):
        opened(kind, duet)


def test_two_residual_models_in_two_threads_do_not_meet():
    kind, pipe = flux()
    worst: list[float] = []

    def work(seed: int) -> None:
        with opened(kind, pipe, seed, reuse="residual") as model:
            for k in (1, 2, 3, 4) * 3:
                v, memo = model.compute(model.noise * 0.9, model.sigmas[k])
                worst.append(float((model.reuse(model.noise * 0.9, model.sigmas[k], memo) - v).abs().max()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worst) == 24 and max(worst) < 1e-4
