"""Frames with media: pictures' bytes beside the frame, in sealed memfds passed by the socket.

Such a frame begins with a body of kind BLOCKS: the sizes of its blocks. Media in its other bodies
are a place: index of the block, offset, length. The blocks' descriptors are sent with the frame's
first byte (SCM_RIGHTS), all at once, so they arrive with it and in order. Other frames are as
without media: an engine's link of text has the same bytes.

media_frame() makes such a frame. ArrivedMedia is the receiver's side. It owns the descriptors that
came with frames not read yet. Invariants: every descriptor is owned by a block, or closed. Missing
or unsealed blocks refuse their frame's media alone, with a reason. Descriptors without a frame
break the link. One thread at a time.
"""

import os
import socket
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.engine.messages.media import (
    Absent,
    KnownBlocks,
    Media,
    MediaBlock,
    MediaPart,
    UnsealedBlock,
)
from tasuki.engine.messages.types import BodyReader, built_value, packer, plain_value, reader_of

BLOCKS = 1 << 16
"""Kind of the first body of a frame with media, beyond all kinds of messages."""
MOST_BLOCKS = 64
"""Most descriptors of a frame. The kernel passes at most 253."""
_CONTROL_BYTES = socket.CMSG_SPACE(MOST_BLOCKS * array("i").itemsize)
_CONTROL = (socket.SOL_SOCKET, socket.SCM_RIGHTS)
_SIZES = msgspec.msgpack.Decoder(list[int]).decode


class StrayDescriptors(ValueError):
    """Descriptors came without a frame that declares them."""


@dataclass(frozen=True)
class MediaFrame:
    """A frame's bodies and the blocks to send with its first byte."""

    bodies: tuple[tuple[int, Any], ...]
    blocks: tuple[MediaBlock, ...]


def media_frame(bodies: Sequence[tuple[int, Any]]) -> MediaFrame:
    """Return the frame of (kind, body) pairs with their media in blocks. Media without a block, and
    those of more blocks than a frame may have, go to a new one. Raises OSError, MediaGone, and
    msgspec's errors."""
    blocks = _Blocks()
    encoder = packer(blocks.placed)
    encoded = tuple((kind, msgspec.Raw(encoder.encode(body))) for kind, body in bodies)
    sent = blocks.all()
    if not sent:
        return MediaFrame(encoded, ())
    return MediaFrame(((BLOCKS, [block.size for block in sent]), *encoded), sent)


class _Blocks:
    """The blocks of one frame, in the order of their first media."""

    def __init__(self) -> None:
        self._index: dict[MediaBlock | None, int] = {}
        """None: the new block."""
        self._offsets: dict[int, int] = {}
        """Offset in the new block, by the identity of the bytes."""
        self._new: list[bytes] = []
        self._size = 0

    def placed(self, value: Any) -> Any:
        """Return the place of media; the plain form of other values."""
        if not isinstance(value, Media):
            return plain_value(value)
        held = value.held
        if isinstance(held, MediaPart) and self._has_space(held.block):
            return self._index.setdefault(held.block, len(self._index)), held.offset, len(value)
        content = value.content()
        if id(content) not in self._offsets:
            self._offsets[id(content)] = self._size
            self._new.append(content)
            self._size += len(content)
        index = self._index.setdefault(None, len(self._index))
        return index, self._offsets[id(content)], len(value)

    def all(self) -> tuple[MediaBlock, ...]:
        return tuple(MediaBlock.of(self._new) if one is None else one for one in self._index)

    def _has_space(self, block: MediaBlock) -> bool:
        """Return True if the frame may have this block. One is left for the new block."""
        return block in self._index or len(self._index) < MOST_BLOCKS - 1


class ArrivedMedia:
    def __init__(self, known: KnownBlocks | None = None) -> None:
        """known: blocks of all sockets of this process; None: of this one alone."""
        self._known = KnownBlocks() if known is None else known
        self._groups: deque[tuple[list[int], bool]] = deque()
        """Descriptors of one frame each, and if the system left some out."""
        self._blocks: list[MediaBlock] | Absent = []
        """Of the frame being read."""

    def readers(self, kinds: Sequence[type]) -> list[BodyReader]:
        """Return decoders of messages, by kind, for frames of this socket."""
        return [reader_of(kind, self._built) for kind in kinds]

    def receive(self, connection: socket.socket, count: int) -> bytes:
        """Return up to `count` received bytes; keep their descriptors. Raises OSError."""
        data, control, flags, _ = connection.recvmsg(count, _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        if control or flags & socket.MSG_CTRUNC:
            handles = array("i")
            for level, kind, content in control:
                if (level, kind) == _CONTROL:
                    handles.frombytes(content[: len(content) - len(content) % handles.itemsize])
            self._groups.append((handles.tolist(), bool(flags & socket.MSG_CTRUNC)))
        return data

    def begin(self, raw: msgspec.Raw) -> None:
        """Take the blocks of the next frame. raw: their sizes. Raises msgspec's errors, and
        StrayDescriptors if none came."""
        sizes = _SIZES(raw)
        if not self._groups:
            raise StrayDescriptors("a frame declares media, and no descriptor came with it")
        handles, cut = self._groups.popleft()
        found = _received(handles, sizes, cut=cut)
        self._blocks = (
            found if isinstance(found, Absent) else [self._known.kept(block) for block in found]
        )

    def end(self) -> None:
        """Forget the blocks of the frame; the media of its messages keep them."""
        self._blocks = []

    def check(self, *, between_frames: bool) -> None:
        """Raise StrayDescriptors if more descriptors wait than frames. between_frames: True if no
        frame is incomplete."""
        if len(self._groups) > (0 if between_frames else 1):
            raise StrayDescriptors("descriptors came without a frame that declares them")

    def close(self) -> None:
        """Close the descriptors of frames not read."""
        while self._groups:
            for handle in self._groups.popleft()[0]:
                os.close(handle)

    def _built(self, kind: Any, value: Any) -> Any:
        if kind is not Media or isinstance(value, int):
            return built_value(kind, value)
        index, offset, length = value
        if isinstance(self._blocks, Absent):
            return Media.absent(length, self._blocks)
        if not 0 <= index < len(self._blocks):
            raise UnsealedBlock(f"media are in block {index} of {len(self._blocks)}")
        return Media.part(self._blocks[index], offset, length)


def _received(handles: list[int], sizes: list[int], *, cut: bool) -> list[MediaBlock] | Absent:
    """Return the blocks of descriptors, or why they are refused. Closes refused ones. cut: the
    system left some out."""
    if len(handles) != len(sizes):
        for handle in handles:
            os.close(handle)
        had = "the process has too many open files" if cut else "its sender is at fault"
        return Absent(f"{len(handles)} of {len(sizes)} descriptors came, because {had}")
    blocks: list[MediaBlock] = []
    refusal: Absent | None = None
    for handle, size in zip(handles, sizes, strict=True):
        try:
            blocks.append(MediaBlock.received(handle, size))
        except UnsealedBlock as error:
            refusal = Absent(str(error))
    return blocks if refusal is None else refusal
