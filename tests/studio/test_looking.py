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
