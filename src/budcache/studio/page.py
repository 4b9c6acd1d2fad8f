"""The page: four tabs, a line that says what the model is doing, and a timer that asks for what is new."""

from __future__ import annotations

from typing import Any

import gradio as gr

from budcache.studio.compare import CompareTab
from budcache.studio.find import FindTab
from budcache.studio.look import LookTab
from budcache.studio.panel import state_of
from budcache.studio.rendering import Seen, render
from budcache.studio.studio import Studio
from budcache.studio.take import TakeTab
from budcache.studio.widgets import QUICK, slot

__all__ = ["page"]

EVERY = 1.0  # seconds


def page(studio: Studio) -> gr.Blocks:
    """The whole page."""
    with gr.Blocks(title=f"{studio.model} · budcache studio", analytics_enabled=False) as blocks:
        bar, seen = slot(elem_id="bar"), gr.State({})
        with gr.Tabs(elem_id="tabs"):
            tabs: list[Any] = []
            for name, kind in (("Look", LookTab), ("Find", FindTab), ("Compare", CompareTab), ("Take away", TakeTab)):
                with gr.Tab(name, id=name.lower().replace(" ", "-")):
                    tabs.append(kind(studio))

        settings = [tab.settings for tab in tabs if hasattr(tab, "settings")]

        def status(before: Seen) -> list[Any]:
            html = render("bar.html.jinja", model=studio.model, state=state_of(studio))
            return [html if before.new("bar", html) else gr.skip(), before.shown]

        def told(before: Seen) -> list[Any]:
            updates = [update for each in settings for update in each.told(studio)]
            return updates if before.new("loaded", str(studio.runner.is_loaded)) else [gr.skip()] * len(updates)

        def refreshed(shown: dict[str, str], *values: Any) -> list[Any]:
            before, rest = Seen(shown), list(values)
            found = [*told(before), *status(before)]
            for tab in tabs:
                count = len(tab.inputs)
                found += tab.refresh(*rest[:count])
                rest = rest[count:]
            return found

        def loaded() -> list[Any]:
            before = Seen()
            told(before)  # the tabs say it with what else they know of their fields
            return [*status(before), *(value for tab in tabs for value in tab.loaded())]

        blocks.load(loaded, None, [bar, seen, *(each for tab in tabs for each in tab.on_load)], **QUICK)
        gr.Timer(EVERY).tick(
            refreshed,
            [seen, *(each for tab in tabs for each in tab.inputs)],
            [*(field for each in settings for field in each.inputs), bar, seen]
            + [each for tab in tabs for each in tab.outputs],
            trigger_mode="once",
            **QUICK,
        )
    return blocks
