"""The pictures of a prompt from another node: keys in, tokens and places out, all checked.

A peer sends a prompt as keys, and its pictures by their places. The tokens follow from both. No
claim is believed: each digest is computed anew from the picture's identity, and each key from its
digest. The cost is no more than the prompt's length. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tasuki.engine import messages as m
from tasuki.model.vision.grid import PictureGrid
from tasuki.model.vision.prompt_positions import PictureKind, PicturePlaceError, PictureRun
from tasuki.pycache.keys import Keys, PictureDigest, PromptTokens, picture_keys

from .placed import PictureShape, PlacedPicture, PlacedPictures

_FILES: Mapping[str, tuple[int, ...]] = {PictureKind.IMAGE: (1,), PictureKind.VIDEO: (1, 2)}
"""Numbers of files of a picture, by its kind."""
PairOfFiles = tuple[m.PictureFile | None, m.PictureFile | None]
"""A picture's file, and the later frame's of a pair."""


def handed_pictures(
    keys: Keys, handed: Sequence[m.HandedPicture], shape: PictureShape
) -> tuple[PromptTokens, PlacedPictures]:
    """Return the prompt's tokens and its pictures, without their files. The prompt may end inside
    the last picture. Raises PicturePlaceError for a key outside all pictures, and for pictures that
    disagree with the keys."""
    if len(handed) > m.MOST_PICTURES:
        raise PicturePlaceError(
            f"{len(handed)} pictures are more than {m.MOST_PICTURES}; send fewer", len(keys)
        )
    tokens, end, placed = keys.copy(), 0, []
    for one in handed:
        if not end < one.start <= len(keys) or min(one.rows, one.columns) < 1:
            raise PicturePlaceError("no picture can stand here; order them by place", one.start)
        placed.append(_placed(one, shape))
        end = min(one.end, len(keys))
        own = slice(one.start - 1, end)
        made = picture_keys(one.digest, one.end - one.start + 1)[: end - one.start + 1]
        if not np.array_equal(keys[own], made):
            raise PicturePlaceError("the keys are not those of the picture's digest", one.start)
        tokens[own] = shape.tokens.image if one.kind == PictureKind.IMAGE else shape.tokens.video
        tokens[one.start - 1] = shape.tokens.start
    if len(tokens) and int(tokens.min()) < 0:
        raise PicturePlaceError("a key belongs to no picture; send it too", int(tokens.argmin()))
    return PromptTokens(tokens), PlacedPictures(tuple(placed), keys)


def unseen_pictures(keys: Keys, shape: PictureShape) -> tuple[PromptTokens, PlacedPictures]:
    """Return the tokens of a prompt whose pictures are unknown: a state's keys and one more. Each
    key of a picture becomes a placeholder. No token of it may be computed for a cache, because
    rows and positions are unknown."""
    tokens = np.where(keys < 0, np.int32(shape.tokens.image), keys)
    return PromptTokens(tokens), PlacedPictures((), keys)


def with_files(
    pictures: PlacedPictures,
    handed: Sequence[m.HandedPicture],
    files: Mapping[int, tuple[bytes, ...]],
) -> PlacedPictures:
    """Return the pictures with the files that came, each at all places of its picture. files: bytes
    by the picture's index. REQUIRES: the digests of the bytes were compared."""
    came: dict[PictureDigest, PairOfFiles] = {}
    for index, contents in files.items():
        place = f"picture {index + 1} of the prompt"
        named = zip(contents, handed[index].files, strict=True)
        first, *more = (_file(*one, place) for one in named)
        came[handed[index].digest] = first, (more[0] if more else None)
    found = []
    for one in pictures.pictures:
        file, second = came.get(one.digest, (one.file, one.second))
        found.append(replace(one, file=file, second=second))
    return PlacedPictures(tuple(found), pictures.keys)


def _file(content: bytes, identity: m.FileIdentity, place: str) -> m.PictureFile:
    plain = m.FileCoding.PLAIN
    return m.PictureFile(m.Media(content), plain, identity.height, identity.width, place)


def _placed(one: m.HandedPicture, shape: PictureShape) -> PlacedPicture:
    """Return the picture. Raises PicturePlaceError for one of another size or identity."""
    tokens = one.rows * one.columns
    if tokens > shape.most_tokens:
        raise PicturePlaceError(
            f"a picture of {tokens} tokens is larger than the {shape.most_tokens} taken here",
            one.start,
        )
    if len(one.files) not in _FILES.get(one.kind, ()):
        raise PicturePlaceError(f"{one.kind!r} of {len(one.files)} files is no picture", one.start)
    source = one.source(shape.factor, shape.constants)
    if source.digest != one.digest:
        raise PicturePlaceError("the picture's digest is not that of its identity", one.start)
    grid = PictureGrid(one.rows * shape.merge, one.columns * shape.merge, shape.merge)
    run = PictureRun(one.start, one.rows, one.columns)
    kind = PictureKind(one.kind)
    return PlacedPicture(run, grid, one.digest, None, kind=kind, source=source)
