"""Frames between two processes: messages to bytes and back.

Owns no socket. Frames with pictures have their media beside them (media_frames.py). Thread rule:
one thread at a time for each FrameReader.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from struct import Struct
from typing import Any, get_args

import msgspec

from tasuki.engine import messages as m
from tasuki.engine.messages.media import MediaBlock
from tasuki.engine.messages.types import BodyReader, packer, reader_of

from .control import ENGINE_CONTROL, FRONT_CONTROL
from .media_frames import BLOCKS, ArrivedMedia, StrayDescriptors, media_frame

_LENGTH = Struct("<I")
MOST_FRAME_BYTES = 1 << 30
"""Bound of a frame. The largest hold a node's tree, or a caller's longest prompts."""
_TOKENS = 0
_KINDS: tuple[type, ...] = (
    m.TokenOut,
    *(kind for kind in get_args(m.Inbox) + get_args(m.Outbox) if kind is not m.TokenOut),
    *FRONT_CONTROL,
    *ENGINE_CONTROL,
)
_NUMBER_OF = {kind: number for number, kind in enumerate(_KINDS)}


class BrokenFrame(ValueError):
    """Received bytes do not form a frame of this protocol."""


class OversizedFrame(ValueError):
    """Messages are too many bytes for a frame. Send less at once."""


_ENCODER = packer()
_BODIES = msgspec.msgpack.Decoder(list[tuple[int, msgspec.Raw]])
_READ_TOKENS = msgspec.msgpack.Decoder(list[m.TokenOut]).decode
_READ = (_READ_TOKENS, *map(reader_of, _KINDS[1:]))


def frame_of(messages: Sequence[Any]) -> bytearray:
    """Encode several messages as one frame.

    A frame is its length, 4 bytes little-endian, and MessagePack: a list of [kind, body]. A kind is
    an index in a table. Both processes build the table from the same code, so no name travels.
    Consecutive tokens are one body. msgspec writes and reads it without a Python object for each
    field. msgspec is already a dependency, and decodes bodies directly into the messages' types. So
    it rejects a foreign frame, while pickle would run it. A token costs 0.1 to 0.3 us in each
    process. Pure. Raises KeyError for values other than messages, and msgspec's errors for values
    that are not plain.
    """
    return framed(_bodies(messages))


def submit_frame(messages: Sequence[Any]) -> "tuple[bytearray, tuple[MediaBlock, ...]]":
    """Encode messages to an engine as one frame, and return the blocks of their media. Raises as
    frame_of(); also OSError without memory for a block."""
    if not any(isinstance(message, m.Submit) and message.pictures for message in messages):
        return frame_of(messages), ()
    made = media_frame(_bodies(messages))
    return framed(made.bodies), made.blocks


def _bodies(messages: Sequence[Any]) -> list[tuple[int, Any]]:
    bodies: list[tuple[int, Any]] = []
    for kind, same in groupby(messages, type):
        if kind is m.TokenOut:
            bodies.append((_TOKENS, list(same)))
        else:
            number = _NUMBER_OF[kind]
            bodies.extend((number, written(message)) for message in same)
    return bodies


def written(message: Any) -> Any:
    """Return the message as frames have it: a Submit of text has no field of pictures."""
    if type(message) is not m.Submit or message.pictures:
        return message
    # A copy by replace() would cost as much as the rest of the frame.
    bare = object.__new__(m.Submit)
    bare.__dict__.update(message.__dict__, pictures=msgspec.UNSET)
    return bare


def framed(bodies: Sequence[tuple[int, Any]]) -> bytearray:
    """Encode a frame of (kind, body) pairs, with the frame's length before them. Raises msgspec's
    errors for a value without a plain form, OversizedFrame."""
    frame = bytearray(_LENGTH.size)
    _ENCODER.encode_into(bodies, frame, _LENGTH.size)
    length = len(frame) - _LENGTH.size
    if length > MOST_FRAME_BYTES:
        raise OversizedFrame(f"a frame of {length} bytes is larger than {MOST_FRAME_BYTES}")
    _LENGTH.pack_into(frame, 0, length)
    return frame


class FrameReader:
    """A reader of frames. It keeps received bytes until their frame is complete."""

    def __init__(
        self, readers: Sequence[BodyReader] | None = None, media: ArrivedMedia | None = None
    ) -> None:
        """readers: decoders by kind, if frames hold other messages than messages_of() decodes; else
        None. media: what came beside the frames; None: a frame with media is broken. REQUIRES:
        readers of `media` are those of this object too."""
        self._readers = readers
        self._media = media
        self._waiting = bytearray()

    @staticmethod
    def of_requests(media: ArrivedMedia) -> "FrameReader":
        """Return a reader of an engine's inbox, with the media of its requests."""
        return FrameReader([_READ_TOKENS, *media.readers(_KINDS[1:])], media)

    def take(self, data: bytes) -> Iterator[list[Any]]:
        """Yield the messages of each complete frame, in order; keep an incomplete one for the next
        call. data: newly received bytes. Raises BrokenFrame."""
        self._waiting += data
        start = 0
        try:
            while len(self._waiting) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(self._waiting, start)
                body = start + _LENGTH.size
                if length > MOST_FRAME_BYTES:
                    raise BrokenFrame(f"a frame of {length} bytes is beyond {MOST_FRAME_BYTES}")
                if len(self._waiting) < body + length:
                    break
                frame = bytes(memoryview(self._waiting)[body : body + length])
                start = body + length
                if self._readers is None:
                    yield messages_of(frame)
                else:
                    yield _flat(values_of(frame, self._readers, self._media))
            if self._media is not None:
                self._check(self._media, between_frames=len(self._waiting) == start)
        finally:
            del self._waiting[:start]

    @staticmethod
    def _check(media: ArrivedMedia, *, between_frames: bool) -> None:
        try:
            media.check(between_frames=between_frames)
        except StrayDescriptors as error:
            raise BrokenFrame(str(error)) from error


def messages_of(body: bytes) -> list[Any]:
    """Return the messages in a frame's body (the frame without its length). Raises BrokenFrame."""
    return _flat(values_of(body, _READ))


def _flat(values: Sequence[tuple[int, Any]]) -> list[Any]:
    """Return the messages of (kind, value) pairs."""
    messages: list[Any] = []
    for _, read in values:
        if isinstance(read, list):
            messages += read
        else:
            messages.append(read)
    return messages


def values_of(
    body: bytes, readers: Sequence[BodyReader], media: ArrivedMedia | None = None
) -> list[tuple[int, Any]]:
    """Return (kind, value) pairs in a frame's body (the frame without its length). readers:
    decoders by kind. media: what came beside the frame, if it has media. Raises BrokenFrame."""
    try:
        bodies = _BODIES.decode(body)
        if media is None:
            return [(kind, readers[kind](raw)) for kind, raw in bodies]
        if bodies and bodies[0][0] == BLOCKS:
            media.begin(bodies.pop(0)[1])
        try:
            return [(kind, readers[kind](raw)) for kind, raw in bodies]
        finally:
            media.end()
    except (msgspec.MsgspecError, IndexError, TypeError, ValueError) as error:
        raise BrokenFrame(str(error)) from error


TakeMessages = Callable[[Sequence[Any]], None]
"""A function to take messages, in order."""
