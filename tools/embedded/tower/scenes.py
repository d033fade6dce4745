"""Drawn scenes and the questions about them.

A scene has one to three figures side by side on a light ground. A figure has a shape, a colour and
a size. Questions and answers follow a small grammar, in words that the embedded model can spell.

Some combinations of a shape and a colour are held out: no scene of the training has one, each
scene of the trial has one or more.
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
    TRIANGLE = "triangle"
    STAR = "star"


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"
    YELLOW = "yellow"
    BLACK = "black"


@dataclass(frozen=True)
class Kind:
    """A shape in a colour."""

    shape: Shape
    colour: Colour

    def __str__(self) -> str:
        return f"a {self.colour} {self.shape}"


KINDS = tuple(Kind(shape, colour) for shape in Shape for colour in Colour)
HELD_OUT = frozenset(
    {
        Kind(Shape.CIRCLE, Colour.BLUE),
        Kind(Shape.SQUARE, Colour.YELLOW),
        Kind(Shape.TRIANGLE, Colour.GREEN),
        Kind(Shape.STAR, Colour.RED),
    }
)
"""Combinations without a scene in the training. Each shape and each colour is in others too."""


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
    """A picture's figures from left to right. ground: three levels. side: pixels."""

    figures: tuple[Figure, ...]
    ground: tuple[int, int, int]
    side: int

    @property
    def kinds(self) -> tuple[Kind, ...]:
        return tuple(figure.kind for figure in self.figures)

    def draw(self) -> Image.Image:
        """Draw the scene. Return it as an RGB picture."""
        wide = self.side * _FINER
        picture = Image.new("RGB", (wide, wide), self.ground)
        pen = ImageDraw.Draw(picture)
        for figure in self.figures:
            x, y, radius = (wide * number for number in (figure.x, figure.y, figure.radius))
            _PENS[figure.kind.shape](pen, x, y, radius, figure.levels)
        return picture.resize((self.side, self.side), Image.Resampling.BOX)


class Topic(StrEnum):
    """Topic of a question: all figures, their number, the figure of one side, the colour of a
    shape, the shape of a colour."""

    ALL = "all"
    COUNT = "count"
    SIDE = "side"
    COLOUR = "colour"
    SHAPE = "shape"


@dataclass(frozen=True)
class Exchange:
    """A question about a scene, and its answer."""

    topic: Topic
    question: str
    answer: str


def training_scene(random: Random) -> Scene:
    """Return a scene without held-out combinations."""
    allowed = [kind for kind in KINDS if kind not in HELD_OUT]
    return _scene(random, [random.choice(allowed) for _ in range(_count(random))])


def held_out_scene(random: Random) -> Scene:
    """Return a scene with one or more held-out combinations."""
    kinds = [random.choice(KINDS) for _ in range(_count(random))]
    kinds[random.randrange(len(kinds))] = random.choice(sorted(HELD_OUT, key=str))
    return _scene(random, kinds)


def exchanges(scene: Scene, random: Random) -> list[Exchange]:
    """Return one question of each kind with an answer in the scene, in random order."""
    kinds = scene.kinds
    found = [
        Exchange(Topic.ALL, random.choice(CAPTION_QUESTIONS), _caption(kinds)),
        Exchange(Topic.COUNT, COUNT_QUESTION, f"There {_COUNTED[len(kinds)]}."),
    ]
    if len(kinds) > 1:
        side, kind = random.choice([("left", kinds[0]), ("right", kinds[-1])])
        found.append(Exchange(Topic.SIDE, f"What is on the {side}?", f"It is {kind}."))
    unlike = [kind for kind in kinds if _only(kind.shape, [other.shape for other in kinds])]
    if unlike:
        kind = random.choice(unlike)
        question = f"What colour is the {kind.shape}?"
        found.append(Exchange(Topic.COLOUR, question, f"It is {kind.colour}."))
    unlike = [kind for kind in kinds if _only(kind.colour, [other.colour for other in kinds])]
    if unlike:
        kind = random.choice(unlike)
        question = f"What is {kind.colour}?"
        found.append(Exchange(Topic.SHAPE, question, f"It is a {kind.shape}."))
    random.shuffle(found)
    return found


CAPTION_QUESTIONS = ("What is in the picture?", "What do you see?", "Describe the picture.")
COUNT_QUESTION = "How many shapes are there?"
MOST_FIGURES = 3
_COUNTED = {1: "is one", 2: "are two", 3: "are three"}
_SIDES = (64, 80, 96, 112, 128)
_FINER = 3
"""Times finer in which figures are drawn, for smooth edges."""
_LEVELS: dict[Colour, tuple[int, int, int]] = {
    Colour.RED: (220, 30, 35),
    Colour.GREEN: (30, 160, 60),
    Colour.BLUE: (35, 70, 220),
    Colour.YELLOW: (245, 215, 30),
    Colour.BLACK: (20, 20, 20),
}
_JITTER = 18


def _count(random: Random) -> int:
    return random.randint(1, MOST_FIGURES)


def _only(one: str, among: Sequence[str]) -> bool:
    return list(among).count(one) == 1


def _caption(kinds: Sequence[Kind]) -> str:
    named = [str(kind) for kind in kinds]
    joined = " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)
    return f"I see {joined}."


def _scene(random: Random, kinds: Sequence[Kind]) -> Scene:
    column = 1 / len(kinds)
    figures = []
    for place, kind in enumerate(kinds):
        radius = random.uniform(0.11, min(0.26, 0.47 * column))
        room = max(0.0, 0.5 * column - radius - 0.005)
        x = (place + 0.5) * column + random.uniform(-room, room)
        y = random.uniform(radius + 0.02, 0.98 - radius)
        figures.append(Figure(kind, x, y, radius, _jittered(random, _LEVELS[kind.colour])))
    light = random.randint(225, 255)
    return Scene(tuple(figures), _jittered(random, (light, light, light), 6), random.choice(_SIDES))


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


def _triangle(pen: ImageDraw.ImageDraw, x: float, y: float, radius: float, levels: _Levels) -> None:
    pen.polygon(_corners(x, y, [radius] * 3), fill=levels)


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
    Shape.TRIANGLE: _triangle,
    Shape.STAR: _star,
}
