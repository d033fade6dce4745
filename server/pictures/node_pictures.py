"""Pictures of a node with a vision tower: read, measured, and placed in prompts.

NodePictures makes the engine's pictures of the clients'. No pixel is decoded here: the engine reads
a file only if its rows are missing. Owns the cache of PictureSizes. Any thread.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from tasuki.engine.messages import FileCoding, Media, PictureFile, PromptPicture
from tasuki.engine.messages.media import can_seal, plain, sealed
from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.processor import ClipRules, PixelRules
from tasuki.model.vision.prompt_positions import PictureKind, PictureRun
from tasuki.pycache.keys import PictureSource
from tasuki.server.errors import MediaLimit, ServerError
from tasuki.server.text.rendering.chat_template import RenderedPrompt

from .expansion import expanded
from .fetching.request_addresses import RequestAddresses
from .part_reader import PictureReader
from .picture_counts import PictureCounter
from .picture_sizes import KnownFile, MeasuredPicture, PictureSizes
from .sent_picture import PictureLimits, SentPicture

log = logging.getLogger(__name__)

_ORIENTATION = "exif"

MakeMedia = Callable[[Sequence[bytes]], list[Media]]
"""A function to hold encoded bytes of one request's pictures. Raises OSError without memory."""


class Pictures(Protocol):
    """The pictures of a node's requests. sees: False if each one is refused. counter: counts those
    that do not reach the engine."""

    @property
    def sees(self) -> bool: ...
    @property
    def counter(self) -> PictureCounter: ...
    @property
    def limits(self) -> PictureLimits: ...
    def reader(
        self, before: Sequence[SentPicture] = (), addresses: RequestAddresses | None = None
    ) -> PictureReader: ...
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
        clip: ClipRules | None = None,
        media: MakeMedia = plain,
    ) -> None:
        """tokens: the checkpoint's ids of pictures. rules: its processor's, as the tower's. limits:
        of a request; None: the defaults. clip: rules for videos; None: they are refused. media:
        holds the bytes of a request's pictures; `sealed` for an engine in a process of its own."""
        self._tokens = tokens
        self._limits = PictureLimits() if limits is None else limits
        self._fps = None if clip is None else clip.fps
        self.counter = PictureCounter()
        self._sizes = PictureSizes(rules, self._limits, clip=clip)
        self._media = media

    @staticmethod
    def of_folder(folder: Path | str, media: MakeMedia = plain) -> "NodePictures":
        """Return the pictures of a checkpoint's folder. media: as in NodePictures(). REQUIRES: it
        has a vision tower. Raises ModelConfigError."""
        config = VisionConfig.load(folder)
        assert config is not None, "the engine has loaded its tower"
        rules, clip = PixelRules.load(folder, config), ClipRules.load(folder, config)
        return NodePictures(config.tokens, rules, clip=clip, media=media)

    @property
    def limits(self) -> PictureLimits:
        return self._limits

    def reader(
        self, before: Sequence[SentPicture] = (), addresses: RequestAddresses | None = None
    ) -> PictureReader:
        """Return the reader of one request's pictures. before: those of its stored part.
        addresses: those of the request; None: refused."""
        return PictureReader(self._limits, before, self._fps, addresses, self.counter.refuse)

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
            self.counter.refuse()
            raise
        found = expanded(rendered, measured, self._tokens, most)
        held, pairs = self._held(sent), zip(measured, found.layout.runs, strict=True)
        pictures = tuple(self._picture(*pair, held) for pair in pairs)
        return replace(found.rendered, pictures=pictures)

    def _held(self, sent: Sequence[SentPicture]) -> Iterator[Media]:
        """Return the media of the pictures' files, as sent, in order."""
        try:
            return iter(self._media([encoded(file) for one in sent for file in one.frames]))
        except OSError as error:
            raise MediaLimit(
                f"this node cannot hold the request's pictures ({error}): ask again later"
            ) from error

    def _picture(
        self, measured: MeasuredPicture, run: PictureRun, held: Iterator[Media]
    ) -> PromptPicture:
        """Return the engine's picture. held: media of its files and later ones."""
        sent, size = measured.sent, measured.size
        constants = self._sizes.rules(sent.detail).constants
        # A pair has two media, also where an odd last frame is doubled.
        names = [file.sha256 for file in measured.files]
        media = names if sent.pair is None else [names[0], names[-1]]
        kind = PictureKind.IMAGE if sent.pair is None else PictureKind.VIDEO
        source = PictureSource(
            *(str(kind), _ORIENTATION, tuple(media), size.height, size.width, constants)
        )
        pairs = zip(sent.frames, measured.files, strict=True)
        file, *more = (_file(frame, known, next(held)) for frame, known in pairs)
        second = more[0] if more else None
        place = run.start, run.rows, run.columns
        return PromptPicture(*place, source.digest, file=file, source=source, second=second)


def pictures_apart(folder: Path | str) -> NodePictures | None:
    """Return the pictures of a node whose engine has a vision tower in another process. Return None
    if this system seals no memory to share: the node refuses pictures."""
    if can_seal():
        return NodePictures.of_folder(folder, sealed)
    log.warning("this system has no sealed memfd_create: the node refuses pictures, serves text")
    return None


def encoded(sent: SentPicture) -> bytes:
    """Return a file's bytes as sent: the file, or its base64."""
    return sent.data if isinstance(sent.data, bytes) else sent.data.text


def _file(sent: SentPicture, known: KnownFile, held: Media) -> PictureFile:
    size = known.header.size
    return PictureFile(
        data=held,
        coding=FileCoding.PLAIN if isinstance(sent.data, bytes) else FileCoding.BASE64,
        height=size.height,
        width=size.width,
        place=sent.place,
    )
