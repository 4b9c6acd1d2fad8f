"""The tabs as the page asks them, without a browser."""

from __future__ import annotations

import gradio as gr
import pytest

from budcache.studio.compare import CompareTab
from budcache.studio.fields import TEXT, UPLOAD
from budcache.studio.find import FindTab
from budcache.studio.look import LookTab
from budcache.studio.page import page
from budcache.studio.settings import NAMES


def built(kind, studio):
    with gr.Blocks():
        return kind(studio)


@pytest.mark.parametrize(
    ("kind", "rest"), [(FindTab, [0, "fit", *[None] * 4]), (CompareTab, [["uniform"], [], False, *[None] * 4])]
)
@pytest.mark.parametrize("source", [TEXT, UPLOAD])
def test_nobody_is_blamed_for_prompts_that_are_still_to_be_written(kind, rest, source, make):
    tab = built(kind, make(start=False))
    *shown, cost = tab.judged(source, "", None, 0, 6, "2,3", *rest)
    assert (set(shown), cost) == ({""}, "")
    *shown, _ = tab.judged(source, "", None, 0, 6, "many", *rest)
    assert "cannot be read" in "".join(shown)
    alerts = tab.started(source, "", None, 0, 6, "2,3", *rest)[: len(shown)]
    assert "there are no prompts" in "".join(alerts) or "no file was chosen" in "".join(alerts)  # when it is meant


@pytest.mark.parametrize("kind", [LookTab, FindTab, CompareTab])
def test_empty_settings_say_what_they_stand_for_once_the_model_is_known(kind, make, until):
    studio = make(call={"guidance_scale": 2.0}, start=False)
    tab = built(kind, studio)
    assert {update["placeholder"] for update in tab.settings.told(studio)} == {"the model's"}
    studio.runner.start()
    until(lambda: studio.runner.is_loaded)
    told = dict(zip(NAMES, tab.settings.told(studio), strict=True))
    assert [told[name]["placeholder"] for name in ("height", "width", "guidance")] == ["64", "64", "2"]
    assert not told["frames"]["visible"]  # of a model of pictures


@pytest.mark.parametrize("kind", [FindTab, CompareTab])
def test_settings_are_as_they_were_left(kind, make):
    studio = make(start=False)
    tab = built(kind, studio)
    values = {FindTab: [0, "fit"], CompareTab: [["uniform"], [], False]}[kind]
    tab.started(TEXT, "red apple\nblue car", None, 0, 6, "2,3", *values, 32, None, None, 2)
    again = built(kind, studio)
    left = dict(zip(again.on_load, again.loaded(), strict=True))
    assert [left[field]["value"] for field in again.settings.inputs] == [32, None, None, 2.0]


def test_every_number_is_refused_at_its_field_and_not_by_the_page(make):
    """Gradio would refuse what is out of its bounds in a box of its own, and round what is not whole."""
    studio = make(start=False)
    numbers = [each for each in page(studio).blocks.values() if isinstance(each, gr.Number)]
    assert len(numbers) >= 12
    for each in numbers:
        assert (each.minimum, each.maximum, each.precision) == (None, None, None), each.label


@pytest.mark.parametrize("kind", [FindTab, CompareTab])
def test_what_is_typed_while_a_new_project_still_loads_stays(kind, make):
    studio = make(start=False)
    tab, fields = built(kind, studio), 8  # before those of the settings
    assert tab.loaded()[:fields] == [gr.skip()] * fields
    studio.project.remember(tab.view.kind.replace("search", "find"), {"budgets": "3"})
    assert "3" in tab.loaded()[:fields]
