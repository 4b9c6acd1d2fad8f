"""Samples: what is calibrated on, how it is seeded and split, and its name."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from budcache import SearchError
from budcache.samples.samples import digest, fresh, seeded, settings_of, settings_of_all, split, take_samples


def generator(seed):
    return torch.Generator().manual_seed(seed)


def noise(seed):
    return torch.randn(1, 4, 40, 40, generator=generator(seed))  # so long that its repr is shortened


def nearly(seed):
    """The same but for one value in the middle, which its repr does not show."""
    changed = noise(seed)
    changed[0, 2, 20, 20] += 1
    return changed


def picture(size=(8, 4), grey=0):
    return Image.new("RGB", size, (grey, grey, grey))


def test_plain_samples_have_the_digest_that_they_always_had():
    """Ledgers and policies hold them."""
    plain = [{"prompt": "a cat", "height": 64, "guidance_scale": 3.5}, {"prompt": ["a", "b"], "strength": None}]
    assert digest(plain) == "f2c60e25028751fc"
    assert digest([{"prompt": "a cat", "generator": generator(7)}]) == "576dd53041528f40"


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: [generator(1), generator(2)], lambda: [generator(1), generator(3)]),
        (lambda: noise(0), lambda: nearly(0)),
        (lambda: [noise(0)], lambda: [nearly(0)]),
        (lambda: [[noise(0)], None], lambda: [[nearly(0)], None]),
        (lambda: (noise(0).numpy(),), lambda: (nearly(0).numpy(),)),
        (lambda: {"noise": noise(0), "scale": 1.0}, lambda: {"noise": nearly(0), "scale": 1.0}),
        (lambda: [picture()], lambda: [picture(grey=1)]),
        (lambda: picture(), lambda: picture(size=(4, 8))),
        (lambda: [noise(0).bfloat16()], lambda: [noise(1).bfloat16()]),
        (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    ],
    ids=["generators", "tensor", "tensors", "nested", "arrays", "mapping", "pictures", "sizes", "bfloat16", "shapes"],
)
def test_samples_are_told_apart_by_what_is_in_them(make, other):
    assert digest([{"given": make()}]) == digest([{"given": make()}])
    assert digest([{"given": make()}]) != digest([{"given": other()}])


def test_the_order_of_a_mapping_says_nothing():
    assert digest([{"given": {"a": 1, "b": 2}}]) == digest([{"given": {"b": 2, "a": 1}}])


# Taking, splitting and seeding


def test_prompts_or_samples_become_keyword_arguments():
    call = {"height": 64, "guidance_scale": 2.0}
    assert take_samples(["a cat", "a dog"], (), call) == [{**call, "prompt": "a cat"}, {**call, "prompt": "a dog"}]
    assert take_samples("a cat", ()) == [{"prompt": "a cat"}]  # a text alone is one prompt, not many letters
    assert take_samples((), [{"prompt": "a cat", "height": 32}], call) == [
        {"height": 32, "guidance_scale": 2.0, "prompt": "a cat"}
    ]
    with pytest.raises(SearchError, match="prompts and samples were both given"):
        take_samples(["a cat"], [{"prompt": "a dog"}])
    with pytest.raises(SearchError, match="no prompts to calibrate on"):
        take_samples([], [], call)


def test_the_last_samples_are_put_aside_a_quarter_if_nothing_is_said():
    assert [split(range(count), None) for count in (1, 3, 4, 8, 9)] == [1, 3, 3, 6, 7]
    assert [split(range(8), selection) for selection in (0, 1, 7)] == [8, 7, 1]
    for selection in (8, 9, -1):
        with pytest.raises(SearchError, match=rf"{selection} of 8 samples for selection .* selection of 7 at most"):
            split(range(8), selection)


def test_noise_is_seeded_unless_the_sample_says_where_to_begin():
    given = {"prompt": "a cat"}
    assert seeded(given, 7)["generator"].initial_seed() == 7
    assert given == {"prompt": "a cat"}
    for own in ({"generator": generator(3)}, {"latents": noise(0)}, {"generator": [generator(1), generator(2)]}):
        assert seeded(own, 7) == own
    assert seeded({"generator": None, "latents": None}, 7)["generator"].initial_seed() == 7


def test_a_fresh_sample_draws_the_same_noise_again():
    used = generator(5)
    torch.randn(3, generator=used)  # so that it is not where it began
    sample = {"generator": used, "generators": [generator(1), generator(2)], "prompt": ["a", "b"], "scale": 2.0}
    before = used.get_state()
    drawn = []
    for _ in range(2):
        twin = fresh(sample)
        drawn.append([torch.randn(4, generator=each) for each in (twin["generator"], *twin["generators"])])
        assert twin["prompt"] is sample["prompt"] and twin["scale"] == 2.0
    assert all(map(torch.equal, *drawn))
    assert torch.equal(used.get_state(), before)
    assert torch.equal(torch.randn(4, generator=used), drawn[0][0])


def test_settings_are_what_an_origin_has_a_field_for():
    sample = {"prompt": "a", "height": 64, "width": None, "num_frames": 9, "guidance_scale": 3.5, "strength": 0.5}
    assert settings_of(sample) == {"height": 64, "frames": 9, "guidance": 3.5}


def test_true_guidance_counts_where_there_is_a_second_prompt():
    given = {"true_cfg_scale": 4.0}
    assert settings_of(given) == {} and settings_of_all([given]) == {"true_guidance": None}
    both = {**given, "negative_prompt": ""}
    assert settings_of(both) == settings_of_all([both]) == {"true_guidance": 4.0}
    mixed = settings_of_all([both, {**both, "true_cfg_scale": 2.0}])
    assert mixed == {"true_guidance": None, "ranges": {"true_guidance": (2.0, 4.0)}}
    assert settings_of_all([{"negative_prompt": ""}]) == {}  # as the pipeline has it
