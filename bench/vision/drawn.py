"""Screenshots drawn by the bench: windows of text, panels and charts, without noise.

A screenshot follows from its number, so each run draws the same ones. Its text decides the length
of its PNG file. Pure functions; a drawing takes some tenths of a second at 1920 x 1080.
"""

import base64
import io
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from os import cpu_count

from PIL import Image, ImageDraw, ImageFont

_LINE = 11
"""Height of a line of text in pixels."""
_BAR = 24
_LETTERS = "etaoin shrdlu cmfwyp vbgkqjxz 0123456789 (){}[]=+-_/:;,."
_WINDOWS = (3, 2)
"""Columns and rows of windows."""
_TRIALS = 5
_INKS = ("#1f2430", "#24539c", "#8a2f2f", "#2f6b3a", "#6a4a8a")
_PAPERS = ("#ffffff", "#f6f8fa", "#fdf6e3", "#eef3fb")


@dataclass(frozen=True)
class Screenshot:
    """A drawn picture. number: its name. file: PNG."""

    number: int
    file: bytes

    @cached_property
    def url(self) -> str:
        """Return the file as a `data:` URL, as clients send it."""
        return f"data:image/png;base64,{base64.b64encode(self.file).decode()}"


@dataclass(frozen=True)
class Screen:
    """The kind of a run's screenshots. width, height: pixels. text_share: share of all lines that
    hold text."""

    width: int
    height: int
    text_share: float = 0.5

    @staticmethod
    def of_bytes(width: int, height: int, wanted: int) -> "Screen":
        """Return the screen whose files have about `wanted` bytes; the nearest one if no share of
        text gives them."""
        low, high = 0.0, 1.0
        for _ in range(_TRIALS):
            share = (low + high) / 2
            if len(Screen(width, height, share).drawn(0).file) < wanted:
                low = share
            else:
                high = share
        return Screen(width, height, (low + high) / 2)

    def drawn(self, number: int) -> Screenshot:
        """Return the screenshot of this number."""
        draw = random.Random(number)
        image = Image.new("RGB", (self.width, self.height), "#3a4656")
        pen = ImageDraw.Draw(image)
        for box in self._windows():
            _window(pen, box, draw, self.text_share)
        pen.rectangle((0, 0, self.width, _BAR), fill="#22262e")
        pen.text((6, 6), f"screen {number}", fill="#ffffff", font=ImageFont.load_default(11))
        file = io.BytesIO()
        image.save(file, "PNG")
        return Screenshot(number, file.getvalue())

    def all_drawn(self, numbers: Iterable[int]) -> list[Screenshot]:
        """Return the screenshots of several numbers, drawn on all cores."""
        with ThreadPoolExecutor(cpu_count()) as pool:
            return list(pool.map(self.drawn, numbers))

    def _windows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the windows' left, top, right and bottom edges."""
        columns, rows = _WINDOWS
        wide, high = self.width // columns, (self.height - _BAR) // rows
        for column in range(columns):
            for row in range(rows):
                left, top = column * wide, _BAR + row * high
                yield left + 4, top + 4, left + wide - 4, top + high - 4


def _window(
    pen: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    draw: random.Random,
    text_share: float,
) -> None:
    """Draw a window: its title, lines of text, and a chart at its lower end."""
    left, top, right, bottom = box
    if right - left < _BAR or bottom - top < 2 * _BAR:
        return
    font = ImageFont.load_default(10)
    pen.rectangle(box, fill=draw.choice(_PAPERS))
    pen.rectangle((left, top, right, top + _BAR), fill=draw.choice(_INKS))
    pen.text((left + 6, top + 6), _words(draw, 20), fill="#ffffff", font=font)
    lines = (bottom - top - _BAR) // _LINE
    written = round(lines * text_share)
    characters = (right - left - 12) // 5
    for line in range(written):
        indent = draw.choice((0, 0, 12, 24))
        at = (left + 6 + indent, top + _BAR + 2 + line * _LINE)
        pen.text(at, _words(draw, characters)[: characters - indent // 5], draw.choice(_INKS), font)
    floor = top + _BAR + written * _LINE
    for bar in range(left + 10, right - 16, 18):
        height = draw.randrange(1, max(2, bottom - floor - 8))
        pen.rectangle((bar, bottom - height - 2, bar + 10, bottom - 2), fill=draw.choice(_INKS))


def _words(draw: random.Random, characters: int) -> str:
    return "".join(draw.choices(_LETTERS, k=characters))
