"""Pictures side by side, with words."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

__all__ = ["grid"]

GAP, HEAD, SIDE = 8, 46, 8


def grid(
    rows: Sequence[Sequence[Image.Image]], columns: Sequence[str], labels: Sequence[str], scale: int = 2
) -> Image.Image:
    """Rows of pictures under column titles, the row's label below its first picture."""
    first = rows[0][0]
    width, height = first.width * scale, first.height * scale
    line = 22
    sheet = Image.new(
        "RGB", (2 * SIDE + len(columns) * (width + GAP), HEAD + len(rows) * (height + line + GAP)), "white"
    )
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for column, title in enumerate(columns):
        draw.multiline_text((SIDE + column * (width + GAP), 8), title, fill="#1d2433", font=font)
    for number, (row, label) in enumerate(zip(rows, labels, strict=True)):
        top = HEAD + number * (height + line + GAP)
        for column, picture in enumerate(row):
            resized = picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
            sheet.paste(resized, (SIDE + column * (width + GAP), top))
        draw.text((SIDE, top + height + 3), label, fill="#5b6478", font=font)
    return sheet
