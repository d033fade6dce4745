"""Three-axis positions of a prompt with pictures.

A token has a position on three axes: frames, rows, columns. A text token has the same number on all
three, one more than the token before. A picture of R x C tokens whose first stands at position p
gives token (r, c) the positions (p, p + r, p + c). The next token has p + max(R, C). So the
positions of a prompt end below its number of tokens. The difference, at most 0, is the delta. A
later token i has position i + delta on all axes, until the next picture.

PromptLayout: the pictures of a prompt by token index. The positions of any part follow from it, so
none are stored. Only rotary embeddings read positions: masks, pages and limits count tokens. All is
immutable and pure. A front places pictures without torch, so functions over tensors import it
themselves. Source: transformers 5.24, `Qwen3_5Model.get_rope_index`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from .config import PictureTokens
from .grid import PictureGrid

if TYPE_CHECKING:
    from torch import Tensor

AXES = 3


class PicturePlaceError(ValueError):
    """Error: the placeholder tokens of a prompt disagree with its pictures. place: index of the
    token at fault, or of the prompt's end."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(f"token {place}: {message}")
        self.place = place


class PictureKind(StrEnum):
    """Kind of a picture, by its placeholder token: an image, or a pair of video frames."""

    IMAGE = "image"
    VIDEO = "video"


@dataclass(frozen=True)
class PromptPicture:
    """A picture for a prompt, before its place in the prompt is known. kind: an image, or a pair of
    video frames."""

    kind: PictureKind
    grid: PictureGrid


@dataclass(frozen=True)
class PictureRun:
    """The tokens of one picture in a prompt. start: index of the first token; rows, columns: size
    in tokens. Raises ValueError for an empty picture."""

    start: int
    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.rows < 1 or self.columns < 1:
            raise ValueError(f"{self} is no picture's place; give a start and a grid of tokens")

    @property
    def tokens(self) -> int:
        return self.rows * self.columns

    @property
    def end(self) -> int:
        """Return the index after the picture's last token."""
        return self.start + self.tokens

    @property
    def shift(self) -> int:
        """Return the change of the delta (position minus token index) caused by this picture; at
        most 0."""
        return max(self.rows, self.columns) - self.tokens


@dataclass(frozen=True)
class PromptLayout:
    """The pictures of a prompt, by ascending start. Raises ValueError if two overlap."""

    runs: tuple[PictureRun, ...]

    def __post_init__(self) -> None:
        for before, after in zip(self.runs, self.runs[1:], strict=False):
            if after.start < before.end:
                raise ValueError(f"{after} begins inside {before}; order the pictures by place")

    @cached_property
    def _shifts(self) -> tuple[int, ...]:
        """Return the delta (position minus token index) before each picture, and after the last
        one."""
        return tuple(accumulate((run.shift for run in self.runs), initial=0))

    @property
    def delta(self) -> int:
        """Return the delta after all pictures: position minus token index, for every later
        token."""
        return self._shifts[-1]

    def positions(self, start: int, stop: int) -> "Tensor":
        """Return the three-axis positions [3, stop - start] int64 of the tokens start to stop - 1,
        on the host. REQUIRES: 0 <= start <= stop."""
        import torch

        found = torch.arange(start, stop).repeat(AXES, 1)
        # The first run that may reach into the part.
        first = bisect_right(self.runs, start, key=lambda run: run.end)
        found += self._shifts[first]
        for run, shift in zip(self.runs[first:], self._shifts[first:], strict=False):
            if run.start >= stop:
                break
            begin, end = max(run.start, start), min(run.end, stop)
            part = slice(begin - start, end - start)
            base, offset = run.start + shift, torch.arange(begin, end) - run.start
            found[0, part] = base
            found[1, part] = base + offset // run.columns
            found[2, part] = base + offset % run.columns
            found[:, part.stop :] += run.shift
        return found


def prompt_layout(
    tokens: Sequence[int], pictures: Sequence[PromptPicture], ids: PictureTokens
) -> PromptLayout:
    """Find the placeholder tokens of each picture in a prompt, and return their layout. pictures:
    the pictures in the order of the prompt.

    Each placeholder run must follow `ids.start` and have as many tokens as its picture. Raises
    PicturePlaceError, also for a placeholder without a picture and a picture without its
    placeholders.
    """
    kinds = {ids.image: PictureKind.IMAGE, ids.video: PictureKind.VIDEO}
    runs: list[PictureRun] = []
    place = 0
    while place < len(tokens):
        kind = kinds.get(tokens[place])
        if kind is None:
            place += 1
            continue
        if len(runs) == len(pictures):
            raise PicturePlaceError("a placeholder has no picture; attach one, or remove it", place)
        picture = pictures[len(runs)]
        run = PictureRun(place, picture.grid.token_rows, picture.grid.token_columns)
        _check_run(tokens, run, kind, picture, ids)
        runs.append(run)
        place = run.end
    if len(runs) < len(pictures):
        raise PicturePlaceError(
            f"{len(pictures) - len(runs)} pictures have no placeholders; add them to the prompt",
            len(tokens),
        )
    return PromptLayout(tuple(runs))


def _check_run(
    tokens: Sequence[int],
    run: PictureRun,
    kind: PictureKind,
    picture: PromptPicture,
    ids: PictureTokens,
) -> None:
    pad = tokens[run.start]
    if kind is not picture.kind:
        raise PicturePlaceError(
            f"a placeholder of {kind} meets a picture of {picture.kind}; order both alike",
            run.start,
        )
    if run.start == 0 or tokens[run.start - 1] != ids.start:
        raise PicturePlaceError(f"no token {ids.start} opens the picture; add it", run.start)
    held = next((at for at in range(run.start, len(tokens)) if tokens[at] != pad), len(tokens))
    if held != run.end:
        raise PicturePlaceError(
            f"{held - run.start} placeholders stand for a picture of {run.tokens} tokens; use its "
            "count",
            run.start,
        )


def prompt_positions(
    tokens: Sequence[int], pictures: Sequence[PromptPicture], ids: PictureTokens
) -> "tuple[Tensor, int]":
    """Return the three-axis positions [3, tokens] int64 of a whole prompt, and its delta (position
    minus token index after the last picture). Raises PicturePlaceError."""
    layout = prompt_layout(tokens, pictures, ids)
    return layout.positions(0, len(tokens)), layout.delta


def rotary_axes(sections: tuple[int, int, int], pairs: int) -> "Tensor":
    """Return the axis of each rotary pair of a head, [pairs] int64: 0 frames, 1 rows, 2 columns.

    Axes are interleaved: pair j follows rows for j = 1, 4, .. below 3 * sections[1], columns for j
    = 2, 5, .. below 3 * sections[2], and frames otherwise.
    """
    import torch

    axes = torch.zeros(pairs, dtype=torch.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : AXES] = axis
    return axes
