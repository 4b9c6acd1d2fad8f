"""Gradio's components as the studio uses them: places for our own markup, and the look of everything else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gradio as gr

from budcache.studio.settings import NAMES
from budcache.studio.studio import Studio

__all__ = ["QUICK", "SettingsFields", "as_left", "slot", "theme"]

QUICK: dict[str, Any] = {"show_progress": "hidden", "queue": False}  # for answers that come at once
SANS = ("Inter", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
# As in the report's colours.css: light, then dark.
GROUND, CARD, INK, SOFT = ("#f4f6fb", "#0b0f17"), ("#ffffff", "#131924"), ("#131926", "#e9edf6"), ("#535d72", "#a3afc3")
LINE, FAINT, OURS, ON = ("#dde3ee", "#2b3546"), ("#edf1f7", "#1e2634"), ("#2150dc", "#8bafff"), ("#ffffff", "#0b0f17")
COLOURS = {
    "body_background_fill": GROUND,
    "body_text_color": INK,
    "body_text_color_subdued": SOFT,
    "background_fill_primary": CARD,
    "background_fill_secondary": FAINT,
    "block_background_fill": CARD,
    "block_border_color": LINE,
    "block_label_text_color": INK,
    "block_title_text_color": INK,
    "block_info_text_color": SOFT,
    "border_color_primary": LINE,
    "input_background_fill": CARD,
    "input_border_color": LINE,
    "input_border_color_focus": OURS,
    "input_placeholder_color": SOFT,
    "checkbox_background_color": CARD,
    "checkbox_background_color_selected": OURS,
    "checkbox_border_color": SOFT,
    "checkbox_border_color_selected": OURS,
    "checkbox_label_background_fill": CARD,
    "checkbox_label_background_fill_selected": FAINT,
    "checkbox_label_text_color": INK,
    "button_primary_background_fill": OURS,
    "button_primary_background_fill_hover": OURS,
    "button_primary_border_color": OURS,
    "button_primary_border_color_hover": OURS,
    "button_primary_text_color": ON,
    "button_secondary_background_fill": CARD,
    "button_secondary_background_fill_hover": FAINT,
    "button_secondary_border_color": LINE,
    "button_secondary_text_color": INK,
    "color_accent_soft": FAINT,
    "link_text_color": OURS,
}
SIZES = {
    "block_radius": "14px",
    "input_radius": "10px",
    "button_large_radius": "10px",
    "button_small_radius": "8px",
    "block_title_text_weight": "600",
    "button_border_width": "1px",
}


def slot(**options: Any) -> Any:
    """A place for our own markup. Empty, it takes no room."""
    return gr.HTML(apply_default_css=False, elem_classes="studio-slot", **options)


class SettingsFields:
    """Size, frames and guidance; what is left empty is the model's own, which is said in the field.

    They are in a part of the page that can be folded, `more`.
    """

    def __init__(self, tab: str, more: Any) -> None:
        self.more = more
        with gr.Row():
            self.height = self._number("Height", tab)
            self.width = self._number("Width", tab)
            self.frames = self._number("Frames", tab, visible=False)
            self.guidance = self._number("Guidance", tab)
        self.refused = slot()

    @staticmethod
    def _number(label: str, tab: str, **options: Any) -> Any:
        return gr.Number(
            label=label,
            value=None,
            placeholder="the model's",
            min_width=80,
            elem_id=f"{tab}-{label.lower()}",
            **options,
        )

    @property
    def inputs(self) -> list[Any]:
        """The fields, in the order of `settings.NAMES`."""
        return [self.height, self.width, self.frames, self.guidance]

    @property
    def on_load(self) -> list[Any]:
        """What `left` returns."""
        return [*self.inputs, self.more]

    def left(self, studio: Studio, call: Mapping[str, Any]) -> list[Any]:
        """The fields as they were left; settings that are at work are not folded away."""
        told = zip(NAMES.values(), self.told(studio), strict=True)
        return [*({**each, "value": call.get(name)} for name, each in told), gr.update(open=bool(call))]

    def told(self, studio: Studio) -> list[Any]:
        """What is known of the model once it is loaded: what empty fields mean, and whether there are frames."""
        own = {field: studio.usual.get(field) for field in NAMES}
        hints = {field: "the model's" if value is None else f"{value:g}" for field, value in own.items()}
        shown = {field: field != "frames" or studio.videos for field in NAMES}
        return [gr.update(placeholder=hints[field], visible=shown[field]) for field in NAMES]


def as_left(values: list[Any], last: Mapping[str, Any]) -> list[Any]:
    """Fields as they were left; where nobody has left any, what is typed while a page still loads stays."""
    return values if last else [gr.skip()] * len(values)


def theme() -> Any:
    """The report's colours, and fonts that every machine has: none is fetched."""
    values = {name: both[0] for name, both in COLOURS.items()} | {
        f"{name}_dark": both[1] for name, both in COLOURS.items()
    }
    base = gr.themes.Default(primary_hue="blue", secondary_hue="blue", neutral_hue="slate", font=SANS, font_mono=MONO)
    return base.set(**values, **SIZES)
