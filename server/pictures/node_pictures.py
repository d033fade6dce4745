"""Pictures of a node with a vision tower: read, measured, and placed in prompts.

NodePictures makes the engine's pictures of the clients'. No pixel is decoded here: the engine reads
a file only if its rows are missing. Owns the cache of PictureSizes. Any thread.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tasuki.engine.messages import FileCoding, Media, PictureFile, PromptPicture
from tasuki.engine.messages.media import can_seal, plain, sealed
from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.processor import PixelRules
from tasuki.model.vision.prompt_positions import PictureRun
from tasuki.pycache.keys import PictureSource
from tasuki.server.errors import MediaLimit, ServerError
from tasuki.server.text.rendering.chat_template import RenderedPrompt

from .expansion import expanded
from .part_reader import PictureReader
from .picture_sizes import MeasuredPicture, PictureSizes
from .sent_picture import PictureLimits, SentPicture

log = logging.getLogger(__name__)

_KIND = "image"
_ORIENTATION = "exif"

MakeMedia = Callable[[Sequence[bytes]], list[Media]]
"""A function to hold encoded bytes of one request's pictures. Raises OSError without memory."""


class Pictures(Protocol):
    """The pictures of a node's requests. sees: False if each one is refused. refused: number of
    pictures refused so far by their content."""

    @property
    def sees(self) -> bool: ...
    @property
    def refused(self) -> int: ...
    def reader(self, before: Sequence[SentPicture] = ()) -> PictureReader: ...
    def placed(
        self, rendered: RenderedPrompt, sent: Sequence[SentPicture], salt: bytes, most: int
    ) -> RenderedPrompt: ...


class NodePictures:
    """The Pictures of a node with a vision tower."""

    sees = True

    def __init__(
        self,
        tokens: PictureTokens,
        rules: PixelRules,
        limits: PictureLimits | None = None,
        media: MakeMedia = plain,
    ) -> None:
        """tokens: the checkpoint's ids of pictures. rules: its processor's, as the tower's. limits:
        of a request; None: the defaults. media: holds the bytes of a request's pictures; `sealed`
        for an engine in a process of its own."""
        self._tokens = tokens
        self._limits = PictureLimits() if limits is None else limits
        self._lock = threading.Lock()
        self.refused = 0
        self._sizes = PictureSizes(rules, self._limits)
        self._media = media

    @staticmethod
    def of_folder(folder: Path | str, media: MakeMedia = plain) -> "NodePictures":
        """Return the pictures of a checkpoint's folder. media: as in NodePictures(). REQUIRES: it
        has a vision tower. Raises ModelConfigError."""
        config = VisionConfig.load(folder)
        assert config is not None, "the engine has loaded its tower"
        return NodePictures(config.tokens, PixelRules.load(folder, config), media=media)

    def reader(self, before: Sequence[SentPicture] = ()) -> PictureReader:
        """Return the reader of one request's pictures. before: those of its stored part."""
        return PictureReader(self._limits, before)

    def placed(
        self, rendered: RenderedPrompt, sent: Sequence[SentPicture], salt: bytes, most: int
    ) -> RenderedPrompt:
        """Return the prompt with its pictures, and one placeholder for each token of them. sent: in
        the order of the conversation; without one the prompt itself is returned. salt: of the
        prompt. most: allowed number of tokens. Raises as PictureSizes.measured() and expanded();
        MediaLimit without memory."""
        if not sent:
            return rendered
        try:
            measured = self._sizes.measured(salt, sent)
        except ServerError:
            with self._lock:
                self.refused += 1
            raise
        found = expanded(rendered, measured, self._tokens, most)
        media = self._held(sent)
        placed = zip(measured, found.layout.runs, media, strict=True)
        return replace(found.rendered, pictures=tuple(self._picture(*one) for one in placed))

    def _held(self, sent: Sequence[SentPicture]) -> list[Media]:
        """Return the media of the pictures, as sent."""
        try:
            return self._media([encoded(one) for one in sent])
        except OSError as error:
            raise MediaLimit(
                f"this node cannot hold the request's pictures ({error}): ask again later"
            ) from error

    def _picture(self, measured: MeasuredPicture, run: PictureRun, media: Media) -> PromptPicture:
        sent, size, header = measured.sent, measured.size, measured.header
        constants = self._sizes.rules(sent.detail).constants
        source = PictureSource(
            *(_KIND, _ORIENTATION, (measured.sha256,), size.height, size.width, constants)
        )
        is_file = isinstance(sent.data, bytes)
        file = PictureFile(
            data=media,
            coding=FileCoding.PLAIN if is_file else FileCoding.BASE64,
            height=header.size.height,
            width=header.size.width,
            place=sent.place,
        )
        place = run.start, run.rows, run.columns
        return PromptPicture(*place, source.digest, file=file, source=source)


def pictures_apart(folder: Path | str) -> NodePictures | None:
    """Return the pictures of a node whose engine has a vision tower in another process. Return None
    if this system seals no memory to share: the node refuses pictures."""
    if can_seal():
        return NodePictures.of_folder(folder, sealed)
    log.warning("this system has no sealed memfd_create: the node refuses pictures, serves text")
    return None


def encoded(sent: SentPicture) -> bytes:
    """Return a picture's bytes as sent: a file, or its base64."""
    return sent.data if isinstance(sent.data, bytes) else sent.data.text
