"""The pictures of one prompt: places, keys and pixels, checked against the prompt's tokens.

Immutable and pure. A check costs no more than the prompt's length. Errors name the place.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tasuki.engine import messages as m
from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.grid import PictureGrid
from tasuki.model.vision.picture_file import decoder_version
from tasuki.model.vision.processor import PixelRules
from tasuki.model.vision.prompt_positions import (
    PictureKind,
    PicturePlaceError,
    PictureRun,
    PromptLayout,
)
from tasuki.pycache.keys import SCHEME, Keys, PictureDigest, PictureSource


@dataclass(frozen=True)
class Sight:
    """A checkpoint's vision, without the tower's weights. config: the tower's shape and token ids.
    rules: the processor's, for sizes and pixels.

    A decode node without a tower reads, measures and places pictures by it. Another node computes
    their rows. Nodes compare its contract before they exchange prompts with pictures.
    """

    config: VisionConfig
    rules: PixelRules

    def contract(self, weights_digest: str) -> Mapping[str, str]:
        """Return the fields with equal values on two nodes that exchange prompts with pictures.
        weights_digest: of the checkpoint's files, the tower's included."""
        return {
            "tower_digest": weights_digest,
            "tower_constants": self.config.constants,
            "tower_tokens": str(self.config.tokens),
            "picture_constants": self.rules.constants,
            "key_scheme": SCHEME.decode(),
            "pillow": decoder_version(),
        }


@dataclass(frozen=True)
class PictureShape:
    """The pictures accepted by an engine. tokens: ids around and inside a picture. merge: patches
    of a token's side. patch_values: levels of a patch. most_tokens: of one picture, by the budget
    of rows. factor: pixels of a token's side. constants: the processor's settings."""

    tokens: PictureTokens
    merge: int
    patch_values: int
    most_tokens: int
    factor: int
    constants: str

    @staticmethod
    def of(config: VisionConfig, rules: PixelRules, most_tokens: int) -> "PictureShape":
        """Return the shape for a checkpoint's tower and processor."""
        return PictureShape(
            config.tokens,
            config.merge,
            config.patch_values,
            most_tokens,
            rules.factor,
            rules.constants,
        )

    @property
    def placeholders(self) -> tuple[int, int]:
        return self.tokens.image, self.tokens.video


@dataclass(frozen=True)
class PlacedPicture:
    """One picture of a prompt. levels [patches, values] uint8; None: to be read from the file, and
    the second one of a pair of frames. file: None: it is still at another node. source: as in
    PromptPicture."""

    run: PictureRun
    grid: PictureGrid
    digest: PictureDigest
    levels: NDArray[np.uint8] | None
    file: m.PictureFile | None = None
    kind: PictureKind = PictureKind.IMAGE
    source: PictureSource | None = None
    second: m.PictureFile | None = None

    @property
    def is_here(self) -> bool:
        """Return True if its pixels are on this node, decoded or not."""
        return self.levels is not None or self.file is not None

    @property
    def files(self) -> tuple[m.PictureFile, ...]:
        """Return its files, in the order of its frames."""
        return tuple(file for file in (self.file, self.second) if file is not None)


@dataclass(frozen=True)
class PictureSpan:
    """A picture's rows in a part of a prompt. index: of the picture among the prompt's. token:
    index of the first one in the part. first: its row of the picture. count: rows."""

    index: int
    token: int
    first: int
    count: int


@dataclass(frozen=True)
class PlacedPictures:
    """All pictures of one prompt, by ascending place. keys: of the whole prompt. There is none only
    for another node's keys: see engine/pictures/handed.py."""

    pictures: tuple[PlacedPicture, ...]
    keys: Keys

    @cached_property
    def layout(self) -> PromptLayout:
        return PromptLayout(self.runs)

    @cached_property
    def runs(self) -> tuple[PictureRun, ...]:
        return tuple(picture.run for picture in self.pictures)

    @property
    def are_files(self) -> bool:
        """Return True if another node can compute each picture from its file."""
        return all(one.file is not None and one.source is not None for one in self.pictures)

    @property
    def end(self) -> int:
        """Return the index behind the last picture's last token."""
        return self.runs[-1].end if self.runs else 0

    def first_behind(self, start: int) -> int:
        """Return the index of the first picture with a token at `start` or later. Without one,
        return the number of pictures."""
        return bisect_right(self.runs, start, key=lambda run: run.end)

    def spans(self, start: int, stop: int) -> Iterator[PictureSpan]:
        """Yield the rows of the prompt's tokens [start, stop), picture by picture."""
        for index in range(self.first_behind(start), len(self.runs)):
            run = self.runs[index]
            if run.start >= stop:
                return
            begin, end = max(run.start, start), min(run.end, stop)
            yield PictureSpan(index, begin - start, begin - run.start, end - begin)

    def rope_positions(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return the positions [3, 1 + stop - start] of the tokens from start - 1 to stop - 1. The
        token before the first one has -1 on all axes."""
        found = np.full((3, stop - start + 1), -1, dtype=np.int32)
        first = max(0, start - 1)
        found[:, first - start + 1 :] = self.layout.positions(first, stop).numpy()
        return found


def placed_pictures(submit: m.Submit, shape: PictureShape) -> PlacedPictures | None:
    """Return the prompt's pictures; None if it has none. A placeholder outside all pictures is
    text, because the model may have sampled it; the servers refuse those of callers. Raises
    PicturePlaceError for pictures that disagree with the prompt's tokens, and for pixels of another
    shape."""
    if not submit.pictures:
        return None
    if len(submit.pictures) > m.MOST_PICTURES:
        raise PicturePlaceError(
            f"{len(submit.pictures)} pictures are more than {m.MOST_PICTURES}; send fewer",
            len(submit.prompt),
        )
    pictures = tuple(_placed(submit.prompt, one, shape) for one in submit.pictures)
    ends = [0, *(picture.run.end for picture in pictures)]
    for end, picture in zip(ends, pictures, strict=False):
        if picture.run.start <= end:
            raise PicturePlaceError(
                "a picture begins inside the one before; order them", picture.run.start
            )
    return PlacedPictures(pictures, submit.keys)


def _placed(prompt: m.Tokens, one: m.PromptPicture, shape: PictureShape) -> PlacedPicture:
    start, merge = one.start, shape.merge
    if not 0 < start < len(prompt) or min(one.rows, one.columns) < 1:
        raise PicturePlaceError("no picture can stand here; give a place in the prompt", start)
    tokens = one.rows * one.columns
    if tokens > shape.most_tokens:
        raise PicturePlaceError(
            f"a picture of {tokens} tokens is larger than the {shape.most_tokens} of the row "
            "budget; shrink it, or raise --picture-rows-mib",
            start,
        )
    if int(prompt[start - 1]) != shape.tokens.start:
        raise PicturePlaceError(f"no token {shape.tokens.start} opens the picture; add it", start)
    held = prompt[start : start + tokens]
    if len(held) < tokens or held[0] not in shape.placeholders or (held != held[0]).any():
        raise PicturePlaceError(
            f"no {tokens} equal placeholders stand for the picture; use its count", start
        )
    if one.levels is None and one.file is None:
        raise PicturePlaceError("a picture has neither a file nor patches; send one", start)
    wanted = (tokens * merge * merge, shape.patch_values)
    if one.levels is not None and (one.levels.shape != wanted or one.levels.dtype != np.uint8):
        raise PicturePlaceError(
            f"patches of shape {list(one.levels.shape)} do not fit {one.rows} x {one.columns} "
            f"tokens, which take {list(wanted)} uint8; use the model's own processor",
            start,
        )
    grid = PictureGrid(one.rows * merge, one.columns * merge, merge)
    run = PictureRun(start, one.rows, one.columns)
    kind = PictureKind.IMAGE if held[0] == shape.tokens.image else PictureKind.VIDEO
    return PlacedPicture(run, grid, one.digest, one.levels, one.file, kind, one.source, one.second)
