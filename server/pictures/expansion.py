"""Placeholders of a rendered prompt, one a picture, expanded to one a token of the picture.

A chat template writes one placeholder id for each picture. `expanded` repeats it as often as the
picture has tokens, and moves everything that counts tokens behind it. Pairs of frames get the
placeholder of videos: the template shows each as an image behind its time. Works on token ids, so
no client's text can become a placeholder. Pure. Costs the length of the longer prompt, checked
first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tasuki.model.vision.config import PictureTokens
from tasuki.model.vision.prompt_positions import PictureRun, PromptLayout
from tasuki.server.errors import InvalidField, InvalidRequest, PromptTooLong
from tasuki.server.text.rendering.chat_template import RenderedPrompt

from .picture_sizes import MeasuredPicture


@dataclass(frozen=True)
class PicturePrompt:
    """A prompt with all placeholders of its pictures. layout: places of the pictures, in order.
    picture_tokens: number of placeholders."""

    rendered: RenderedPrompt
    layout: PromptLayout

    @property
    def picture_tokens(self) -> int:
        return sum(run.tokens for run in self.layout.runs)


def expanded(
    rendered: RenderedPrompt,
    pictures: Sequence[MeasuredPicture],
    ids: PictureTokens,
    most: int,
) -> PicturePrompt:
    """Return the prompt with each picture's placeholder repeated.

    pictures: in the order of the conversation. ids: token ids around and inside a picture. most:
    allowed number of tokens. Raises InvalidField for a picture not shown by the template,
    InvalidRequest for other placeholders of the template, PromptTooLong.
    """
    tokens = rendered.tokens
    places = np.flatnonzero(tokens == ids.image)
    _check_counts(len(places), pictures)
    _check_template(tokens, places, ids)
    added = np.array([picture.tokens - 1 for picture in pictures], dtype=np.int64)
    length = len(tokens) + int(added.sum())
    if length > most:
        raise PromptTooLong(
            f"messages has {length} tokens, {length - len(tokens) + len(places)} of them of "
            f"{len(places)} pictures, and the model's context is {most} with the answer: send less",
            "messages",
        )
    counts = np.ones(len(tokens), dtype=np.int64)
    counts[places] += added
    repeated = np.repeat(tokens, counts)
    shifts = _Shifts(places, np.concatenate([[0], np.cumsum(added)]))
    runs = tuple(
        PictureRun(shifts.of(place), picture.grid.token_rows, picture.grid.token_columns)
        for place, picture in zip(places.tolist(), pictures, strict=True)
    )
    for run, picture in zip(runs, pictures, strict=True):
        if picture.sent.pair is not None:
            repeated[run.start : run.end] = ids.video
    return PicturePrompt(shifts.moved(rendered, repeated), PromptLayout(runs))


@dataclass(frozen=True)
class _Shifts:
    """places: of the placeholders before their expansion, ascending. added: tokens added before
    each of them, and before the end."""

    places: NDArray[np.intp]
    added: NDArray[np.int64]

    def of(self, count: int) -> int:
        """Return the number of expanded tokens made from the first `count`."""
        before = int(np.searchsorted(self.places, count))
        return count + int(self.added[before])

    def moved(self, rendered: RenderedPrompt, tokens: NDArray[np.int32]) -> RenderedPrompt:
        """Return the prompt with other tokens and its counts moved."""
        changed, end = rendered.changed, rendered.message_end
        return replace(
            rendered,
            tokens=tokens,
            marks=tuple(map(self.of, rendered.marks)),
            changed=None if changed is None else (self.of(changed[0]), self.of(changed[1])),
            message_end=None if end is None else self.of(end),
        )


def _check_counts(shown: int, pictures: Sequence[MeasuredPicture]) -> None:
    sent = len(pictures)
    if shown < sent:
        # Templates drop pictures of roles they do not know them in, mostly of all of them.
        raise InvalidField(
            pictures[shown].sent.place,
            f"is a picture, and the model's chat template shows {shown} of {sent}: send pictures "
            "in a user's message",
        )
    if shown > sent:
        raise InvalidRequest(
            f"messages: the model's chat template shows {shown} pictures of {sent}: its template "
            "is broken, copy the published one"
        )


def _check_template(
    tokens: NDArray[np.int32], places: NDArray[np.intp], ids: PictureTokens
) -> None:
    """Raise InvalidRequest for placeholders of videos, and for pictures without their opening
    token. The opening token is a part of a picture's name in the cache."""
    if (tokens == ids.video).any():
        raise InvalidRequest("messages: the model's chat template shows a video: send pictures")
    if len(places) and (places[0] == 0 or (tokens[places - 1] != ids.start).any()):
        raise InvalidRequest(
            f"messages: the model's chat template opens a picture without token {ids.start}: copy "
            "the published one"
        )
