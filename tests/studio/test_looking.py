"""What is drawn for somebody who looks, in which order, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from budcache.metrics.pixels import psnr
from budcache.policy import Ladder, Policy
from budcache.studio import looking
from budcache.studio.drawing import Drawing
from budcache.studio.looking import Look
from budcache.studio.studio import UNIFORM
from budcache.wording import several

FOUND = Ladder.of([Policy(mask=mask) for mask in ("100100", "101010", "101110")])


def test_a_look_is_drawn_and_kept_with_its_figures(make, until):
    studio = make()
    until(lambda: studio.runner.is_loaded)
    look = Look(("red apple",), 3, UNIFORM, 2)
    before = looking.view(studio, look)
    assert (before.stage.full, before.stage.drawn, before.waits) == (None, None, "Drawing …")
    looking.ask(studio, look)
    until(lambda: studio.runner.is_idle)
    now = looking.view(studio, look)
    full, drawn = now.stage.full, now.stage.drawn
    assert (full.calls, drawn.calls, full.psnr, now.waits) == (6, 2, None, "")
    assert [(mark.budget, mark.drawn) for mark in now.marks] == [(2, 1), (3, 1), (4, 1), (5, 1)]  # ahead
    pictures = [Image.open(studio.album.path(each.key, "picture.webp")) for each in (full, drawn)]
    assert [picture.size for picture in pictures] == [(full.width, full.height)] * 2
    levels = [np.asarray(picture.convert("RGB"), np.float32) / 255 for picture in pictures]
    assert drawn.psnr == pytest.approx(psnr(levels[1], levels[0]), abs=0.1)
    assert Image.open(studio.album.path(drawn.key, "difference.webp")).size == pictures[0].size
    assert studio.album.seconds_per_call > 0


def test_what_is_drawn_is_what_the_pipeline_draws(make, until):
    from budcache import applied, load

    studio = make()
    studio.project.keep("mine", FOUND)
    until(lambda: studio.runner.is_loaded)
    looking.ask(studio, Look(("red apple",), 5, "mine", 3))
    until(lambda: studio.runner.is_idle)
    drawn = looking.view(studio, Look(("red apple",), 5, "mine", 3)).stage.drawn
    import torch

    pipe = load("tiny-flux")
    with applied(pipe, FOUND, budget=3):
        generator = torch.Generator("cpu").manual_seed(5)
        picture = pipe("red apple", num_inference_steps=6, generator=generator).images[0]
    kept = Image.open(studio.album.path(drawn.key, "picture.webp")).convert("RGB")
    assert np.array_equal(np.asarray(kept), np.asarray(picture))  # small pictures are kept without loss


def test_a_kept_picture_is_not_drawn_again_even_after_a_restart(make, until):
    studio = make()
    until(lambda: studio.runner.is_loaded)
    looking.ask(studio, Look(("red apple",), 0, UNIFORM, 2))
    until(lambda: studio.runner.is_idle)
    studio.close()
    again = make()
    until(lambda: again.runner.is_loaded)
    last = Look.last(again)
    assert (last.prompts, last.seed, last.ladder, last.budget) == (("red apple",), 0, UNIFORM, 2)
    drawn = looking.view(again, last).stage.drawn
    looking.ask(again, last)
    assert drawn is not None
    assert again.runner.is_idle


def test_several_prompts_come_the_worst_first(make, until):
    studio = make()
    until(lambda: studio.runner.is_loaded)
    look = Look(("red apple", "blue car", "green tree"), 0, UNIFORM, 2)
    looking.ask(studio, look)
    until(lambda: studio.runner.is_idle)
    cells = looking.view(studio, look).cells
    values = [cell.drawn.psnr for cell in cells]
    assert values == sorted(values)
    assert len(set(values)) == 3
    assert looking.view(studio, look).stage == cells[0]
    other = cells[2].place
    assert looking.view(studio, replace(look, chosen=other)).stage.prompt == look.prompts[other]


def test_a_grid_of_which_nothing_is_drawn_is_shown_all_the_same(make):
    from budcache.studio.rendering import render

    studio = make(start=False)
    now = looking.view(studio, Look(("red apple", "blue car"), 0, UNIFORM, 2))
    assert now.waits == "Loading tiny-flux …"
    assert render("grid.html.jinja", view=now).count("not drawn yet") == 2
    assert "Loading tiny-flux" in render("stage.html.jinja", view=now, cell=now.stage, amplified=5)


def test_other_weights_have_other_pictures(make, tmp_path, until):
    from budcache import models

    def changed():
        pipe = models.load("tiny-flux")
        pipe.transformer.proj_out.weight.data *= 1.01
        return pipe

    keys = []
    for number, load in enumerate((lambda: models.load("tiny-flux"), changed)):
        studio = make(load, folder=tmp_path / str(number))
        until(lambda studio=studio: studio.runner.is_loaded)
        keys.append(Drawing("red apple", 0, 6).key(studio.album.model))
    assert keys[0] != keys[1]


def test_a_pipeline_that_fails_says_so_on_the_stage(make, until):
    studio = make(call={"height": 7})
    until(lambda: studio.runner.is_loaded)
    look = Look(("red apple",), 0, UNIFORM, 2)
    looking.ask(studio, look)
    until(lambda: studio.runner.is_idle)
    failed = looking.view(studio, look).stage.failed
    assert failed.endswith(".")
    assert "failed:" in failed


@pytest.mark.parametrize(
    ("text", "seed", "field", "sentence"),
    [
        ("", 0, "prompts", "Write a prompt"),
        (" \n ", 0, "prompts", "Write a prompt"),
        ("\n".join(map(str, range(65))), 0, "prompts", f"{several(65, 'prompt')}, but a grid holds 64"),
        ("red apple", -1, "seed", "the seed is -1"),
        ("red apple", None, "seed", "whole number"),
        ("red apple", 1.5, "seed", "whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_its_field(text, seed, field, sentence, make):
    look, refused = looking.read(make(start=False), text, seed, UNIFORM, 4)
    assert look is None
    assert list(refused) == [field]
    assert sentence in refused[field]


def test_other_settings_have_other_pictures_and_are_those_of_the_pipeline(make, until):
    from budcache import load

    studio = make(call={"height": 32, "width": 32})
    until(lambda: studio.runner.is_loaded)
    look, refused = looking.read(studio, "red apple", 5, UNIFORM, 2, None, 48, None, 1.5)
    assert (refused, look.call) == ({}, {"width": 48, "guidance_scale": 1.5})
    looking.ask(studio, look)
    until(lambda: studio.runner.is_idle)
    now = looking.view(studio, look)
    assert now.settings == "width 48, guidance 1.5"
    assert looking.view(studio, replace(look, call={})).stage.full is None  # that is another picture
    import torch

    call = {"height": 32, "width": 48, "guidance_scale": 1.5, "num_inference_steps": 6}
    picture = load("tiny-flux")("red apple", **call, generator=torch.Generator("cpu").manual_seed(5)).images[0]
    kept = Image.open(studio.album.path(now.stage.full.key, "picture.webp")).convert("RGB")
    assert np.array_equal(np.asarray(kept), np.asarray(picture))
    assert (now.stage.drawn.width, now.stage.drawn.height) == (48, 32)
    assert Look.last(studio) == now.look  # also of a page that is opened anew


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ((0, None, None, None), "the height is 0. Give 1 or more"),
        ((None, 100_000, None, None), "the width is 100000. Give 8192 or less"),
        ((None, 63, None, None), "the width is 63, but tiny-flux draws multiples of 16. Try 64"),
        ((1.5, None, None, None), "the height is 1.5. Give a whole number"),
        ((None, None, 9, None), "tiny-flux takes no num_frames. Leave the frames empty"),
        ((None, None, None, float("nan")), "the guidance is nan. Give a number"),
        ((None, None, None, "much"), "the guidance is 'much'. Give a number"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, sentence, make, until):
    studio = make()
    until(lambda: studio.runner.is_loaded)
    look, refused = looking.read(studio, "red apple", 0, UNIFORM, 2, *settings)
    assert look is None
    assert sentence in refused["settings"]


def test_a_policy_far_from_where_it_was_fitted_says_so_below_the_picture(make, until):
    from budcache.policy import Origin
    from budcache.studio.rendering import render

    fitted = Policy(mask="101010", weights=((1.0,), (1.5, -0.5), (1.5, -0.5)), origin=Origin(guidance=3.5))
    studio = make(policy=("fitted", Ladder.of([fitted])))
    until(lambda: studio.runner.is_loaded)
    for guidance, said in ((3.5, False), (9.0, True)):
        look, _ = looking.read(studio, "red apple", 0, "fitted", 3, None, None, None, guidance)
        looking.ask(studio, look)
        until(lambda: studio.runner.is_idle)
        now = looking.view(studio, look)
        html = render("stage.html.jinja", view=now, cell=now.stage, amplified=5)
        assert ("The policy was fitted at guidance 3.5, this run has 9" in html) is said


def test_a_ladder_without_the_budget_gives_the_nearest(make):
    studio = make(start=False)
    studio.project.keep("mine", FOUND)
    look, _ = looking.read(studio, "red apple", 0, "mine", 12)
    assert look.budget == 4
    look, _ = looking.read(studio, "red apple", 0, "no such ladder", 12)
    assert look.ladder == "mine"


@pytest.mark.parametrize("name", ["../../secret", "a/b", "", ".."])
def test_the_album_serves_its_own_files_only(name, make, tmp_path):
    (tmp_path / "secret").write_text("secret")
    studio = make(start=False)
    assert studio.album.path("a" * 32, name) is None
    assert studio.album.path(name, "facts.json") is None
