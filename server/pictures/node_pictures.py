"""Pictures of a node with a vision tower: read, measured, and placed in prompts.

NodePictures makes the engine's pictures of the clients'. No pixel is decoded here: the engine reads
a file only if its rows are missing. Owns the cache of PictureSizes. Any thread.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from tasuki.engine.messages import FileCoding, PictureFile, PromptPicture
from tasuki.model.vision.config import PictureTokens
from tasuki.model.vision.processor import PixelRules
from tasuki.model.vision.prompt_positions import PictureRun
from tasuki.pycache.keys import PictureSource
from tasuki.server.errors import ServerError
from tasuki.server.text.rendering.chat_template import RenderedPrompt

from .expansion import expanded
from .part_reader import PictureReader
from .picture_sizes import MeasuredPicture, PictureSizes
from .sent_picture import PictureLimits, SentPicture

_KIND = "image"
_ORIENTATION = "exif"


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
        self, tokens: PictureTokens, rules: PixelRules, limits: PictureLimits | None = None
    ) -> None:
        """tokens: the checkpoint's ids of pictures. rules: its processor's, as the tower's. limits:
        of a request; None: the defaults."""
        self._tokens = tokens
        self._limits = PictureLimits() if limits is None else limits
        self._lock = threading.Lock()
        self.refused = 0
        self._sizes = PictureSizes(rules, self._limits)

    def reader(self, before: Sequence[SentPicture] = ()) -> PictureReader:
        """Return the reader of one request's pictures. before: those of its stored part."""
        return PictureReader(self._limits, before)

    def placed(
        self, rendered: RenderedPrompt, sent: Sequence[SentPicture], salt: bytes, most: int
    ) -> RenderedPrompt:
        """Return the prompt with its pictures, and one placeholder for each token of them. sent: in
        the order of the conversation; without one the prompt itself is returned. salt: of the
        prompt. most: allowed number of tokens. Raises as PictureSizes.measured() and expanded()."""
        if not sent:
            return rendered
        try:
            measured = self._sizes.measured(salt, sent)
        except ServerError:
            with self._lock:
                self.refused += 1
            raise
        found = expanded(rendered, measured, self._tokens, most)
        pairs = zip(measured, found.layout.runs, strict=True)
        return replace(found.rendered, pictures=tuple(self._picture(*pair) for pair in pairs))

    def _picture(self, measured: MeasuredPicture, run: PictureRun) -> PromptPicture:
        sent, size, header = measured.sent, measured.size, measured.header
        constants = self._sizes.rules(sent.detail).constants
        source = PictureSource(
            *(_KIND, _ORIENTATION, (measured.sha256,), size.height, size.width, constants)
        )
        is_file = isinstance(sent.data, bytes)
        file = PictureFile(
            data=sent.data if isinstance(sent.data, bytes) else sent.data.text,
            coding=FileCoding.PLAIN if is_file else FileCoding.BASE64,
            height=header.size.height,
            width=header.size.width,
            place=sent.place,
        )
        return PromptPicture(run.start, run.rows, run.columns, source.digest, file=file)
