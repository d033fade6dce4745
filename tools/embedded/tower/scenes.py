"""Drawn scenes and the questions about them.

A scene has one figure on a light ground. The figure has a shape, a colour, a size and a place.
Questions and answers follow a small grammar, in words that the embedded model can spell.

Some combinations of a kind and a quarter of the picture are held out: no scene of the training has
one, each scene of the trial has one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from PIL import Image, ImageDraw


class Shape(StrEnum):
    CIRCLE = "circle"
    SQUARE = "square"
    STAR = "star"
    HEART = "heart"


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"
    YELLOW = "yellow"


@dataclass(frozen=True)
class Kind:
    """A shape in a colour."""

    shape: Shape
    colour: Colour

    def __str__(self) -> str:
        return f"a {self.colour} {self.shape}"


KINDS = tuple(Kind(shape, colour) for shape in Shape for colour in Colour)
QUARTERS = 4
"""Quarters of a picture: upper left, upper right, lower left, lower right."""


def held_out_quarter(kind: Kind) -> int:
    """Return the quarter in which no scene of the training has this kind. Other kinds of its shape
    and of its colour are there."""
    return (list(Shape).index(kind.shape) + list(Colour).index(kind.colour)) % QUARTERS


@dataclass(frozen=True)
class Figure:
    """A drawn figure. x, y: its centre, and radius: from there to its corners, as shares of the
    picture's side. levels: its colour, three levels from 0 to 255."""

    kind: Kind
    x: float
    y: float
    radius: float
    levels: tuple[int, int, int]


@dataclass(frozen=True)
class Scene:
    """A picture of one figure. ground: three levels. side: pixels."""

    figure: Figure
    ground: tuple[int, int, int]
    side: int

    def draw(self) -> Image.Image:
        """Draw the scene. Return it as an RGB picture."""
        wide = self.side * _FINER
        picture = Image.new("RGB", (wide, wide), self.ground)
        figure = self.figure
        x, y, radius = (wide * number for number in (figure.x, figure.y, figure.radius))
        _PENS[figure.kind.shape](ImageDraw.Draw(picture), x, y, radius, figure.levels)
        return picture.resize((self.side, self.side), Image.Resampling.BOX)


@dataclass(frozen=True)
class Exchange:
    """A question about a scene, and its answer."""

    question: str
    answer: str


def training_scene(random: Random) -> Scene:
    """Return a scene without a held-out combination."""
    kind = random.choice(KINDS)
    free = [quarter for quarter in range(QUARTERS) if quarter != held_out_quarter(kind)]
    return _scene(random, kind, random.choice(free))


def held_out_scene(random: Random) -> Scene:
    """Return a scene with a held-out combination."""
    kind = random.choice(KINDS)
    return _scene(random, kind, held_out_quarter(kind))


def exchanges(scene: Scene, random: Random) -> list[Exchange]:
    """Return some questions about a scene, in random order. Each has the same answer."""
    answer = f"{str(scene.figure.kind).capitalize()}."
    return [Exchange(question, answer) for question in random.sample(QUESTIONS, len(QUESTIONS))]


QUESTIONS = (
    "What is in the picture?",
    "What do you see?",
    "Describe the picture.",
    "What is it?",
    "And what is it?",
    "Look again.",
)
_SIDES = (64, 80, 96, 112, 128)
_FINER = 3
"""Times finer in which figures are drawn, for smooth edges."""
_LEVELS: dict[Colour, tuple[int, int, int]] = {
    Colour.RED: (220, 30, 35),
    Colour.GREEN: (30, 160, 60),
    Colour.BLUE: (35, 70, 220),
    Colour.YELLOW: (245, 210, 30),
}
_JITTER = 18


def _scene(random: Random, kind: Kind, quarter: int) -> Scene:
    radius = random.uniform(0.14, 0.26)
    row, column = divmod(quarter, 2)
    x, y = (
        random.uniform(0.5, 0.98 - radius) if far else random.uniform(radius + 0.02, 0.5)
        for far in (column, row)
    )
    figure = Figure(kind, x, y, radius, _jittered(random, _LEVELS[kind.colour]))
    light = random.randint(225, 255)
    return Scene(figure, _jittered(random, (light, light, light), 6), random.choice(_SIDES))


def _jittered(
    random: Random, levels: tuple[int, int, int], by: int = _JITTER
) -> tuple[int, int, int]:
    red, green, blue = (min(255, max(0, level + random.randint(-by, by))) for level in levels)
    return (red, green, blue)


_Levels = tuple[int, int, int]
_Pen = Callable[[ImageDraw.ImageDraw, float, float, float, _Levels], None]


def _circle(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, levels: _Levels) -> None:
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=levels)


def _square(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, levels: _Levels) -> None:
    half = 0.88 * radius
    pen.rectangle((x - half, y - half, x + half, y + half), fill=levels)


def _heart(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, levels: _Levels) -> None:
    points = []
    for step in range(48):
        turn = 2 * math.pi * step / 48
        across = 16 * math.sin(turn) ** 3
        up = 13 * math.cos(turn) - 5 * math.cos(2 * turn) - 2 * math.cos(3 * turn)
        up -= math.cos(4 * turn)
        points.append((x + radius * across / 17, y - radius * up / 17))
    pen.polygon(points, fill=levels)


def _star(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, levels: _Levels) -> None:
    pen.polygon(_corners(x, y, [radius, 0.4 * radius] * 5), fill=levels)


def _corners(x: float, y: float, radii: Sequence[float]) -> list[tuple[float, float]]:
    """Return points around (x, y) at equal angles, the first one straight above."""
    turn = 2 * math.pi / len(radii)
    return [
        (x + radius * math.sin(turn * at), y - radius * math.cos(turn * at))
        for at, radius in enumerate(radii)
    ]


_PENS: dict[Shape, _Pen] = {
    Shape.CIRCLE: _circle,
    Shape.SQUARE: _square,
    Shape.HEART: _heart,
    Shape.STAR: _star,
}
