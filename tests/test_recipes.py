"""Recipes are commands that run, as far as they go without a model; prompts of ours are there by name."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from pathlib import Path

import pytest

import budcache
from budcache import SearchError
from budcache.jobs.recipes import RECIPES, recipe, written
from budcache.samples.prompts import SETS, read_prompts

# Prompts


@pytest.mark.parametrize("name", SETS)
def test_our_prompts(name, tmp_path, monkeypatch):
    found = budcache.prompts(name)
    assert len(found) == len(set(found)) == 32
    lengths = sorted(len(text) for text in found)
    assert lengths[0] < 50 and lengths[-1] > 120, "short and long, as users' are"
    monkeypatch.chdir(tmp_path)
    assert read_prompts(name) == read_prompts(Path(name)) == found
    Path(name).write_text("mine\n", encoding="utf-8")
    assert read_prompts(name) == ["mine"], "a file of that name comes first"
    assert budcache.prompts(name) == found


def test_other_sets_are_refused():
    with pytest.raises(SearchError, match=r"no set of prompts 'image'. Did you mean images\?"):
        budcache.prompts("image")


# Recipes


def words(text):
    return shlex.split(text.replace("\\\n", " "))


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_a_command_that_runs(name, run_here, tmp_path, monkeypatch):
    """Up to where the model would be loaded; and what it says it costs is what the command says it costs."""
    monkeypatch.chdir(tmp_path)
    code, out, _ = run_here("recipe", name)
    assert code == 0
    command = words(out.split("\n\n")[0])
    assert command == recipe(name).search(f"{name}.ladder.json")
    code, dry, err = run_here(*command[1:], "--dry-run", "--json")
    assert code == 0, err
    calls = json.loads(dry)["sample_calls_with_two_branches" if recipe(name).branches == 2 else "sample_calls"]
    assert calls == recipe(name).planned.sample_calls and f"{calls:,} sample-calls" in out
    assert "An estimate" in out and recipe(name).gpu in out
    assert f"{recipe(name).count} prompts of the set" in out


@pytest.mark.parametrize("name", RECIPES)
def test_what_comes_after_a_recipe_names_options_that_there_are(name, commands):
    for found in recipe(name).then("x.json").values():
        known = {option for each in commands[found[1]].params for option in each.opts}
        assert {word for word in found if word.startswith("--")} <= known, found


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_fits_its_pipeline(name):
    """The options become arguments that the pipelines of diffusers take."""
    import diffusers

    found = recipe(name)
    classes = {"flux": "Flux", "wan": "Wan", "qwen-image": "QwenImage", "z-image": "ZImage", "sd3": "StableDiffusion3"}
    kind = getattr(diffusers, classes.get(name, "StableDiffusionXL") + "Pipeline")
    known = inspect.signature(kind.__call__).parameters
    wanted = {"height", "width"} | ({"num_frames"} if found.frames else set())
    wanted |= ({"guidance_scale"} if found.guidance else set()) | ({"negative_prompt"} if found.negative else set())
    assert wanted <= set(known)
    assert found.count <= len(budcache.prompts(found.prompts))


def test_recipes_are_listed_and_estimated(run_here):
    code, out, _ = run_here("recipe")
    assert code == 0 and all(found.model in out for found in RECIPES.values())
    code, out, _ = run_here("recipe", "flux", "--seconds", "2", "--json")
    facts = json.loads(out)
    assert facts["minutes"] == pytest.approx(facts["sample_calls"] / 30)
    code, _, err = run_here("recipe", "fluks")
    assert code == 2 and re.search(r"no recipe 'fluks'\. Did you mean flux\?", err)


def test_a_command_is_written_for_a_shell():
    options = [word for i in range(20) for word in (f"--option-{i}", f"it's {i}")]
    said = ["budcache", "search", "a b", *options, "--negative", " "]
    assert words(written(said)) == said and max(map(len, written(said).splitlines())) < 120


def test_what_a_recipe_finds_is_tried_by_check_at_its_own_settings():
    """A comparison is for what a check does not answer: whether fewer steps would do."""
    for name, found in RECIPES.items():
        then = {words[1]: words for words in found.then("x.json").values()}
        assert then["check"] == ["budcache", "check", found.model, "--policy", "x.json", "--budget", then["check"][-1]]
        assert then["compare"][then["compare"].index("--methods") + 1] == "fewer-steps"
        assert ("--approximate" in then["export"]) == (found.branches == 2), name
