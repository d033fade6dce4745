"""Encoded bytes of pictures, shared by reference among requests and processes.

Media are the bytes of one picture as they came. In a node of one process they are a bytes object.
Between processes they are a part of a MediaBlock: a sealed memfd. A frame holds their place only,
and the socket passes the block's descriptor. So no process copies them before a picture is decoded.

The kernel frees a block with its last descriptor, so a process that dies frees its media. A block
is closed with its last reference: a request holds its media until it ends, a stored response as
long as its tokens. Seals make sure that no other process changes or cuts a block while it is read.

Without memfd_create, as under some seccomp profiles, no block can be made. Frames are no other way:
an unread one of 64 MiB means a dead process. Decoding needs memfd_create anyway. So such a node
serves text, and refuses pictures at its doors: see can_seal(). Immutable values, any thread.
"""

import fcntl
import os
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals of every block. A receiver checks them."""
BLOCK_CHARGE = 128 << 10
"""Smallest charge of media in a block, in bytes."""
_WRITE_BYTES = 1 << 30
"""Bytes of one write. The kernel takes no more than 2 GiB."""


class UnsealedBlock(ValueError):
    """A descriptor that came from another process is no sealed memfd of its declared size."""


class MediaGone(RuntimeError):
    """The bytes of media are not in this process."""


class MediaBlock:
    """A sealed memfd with the media of a request. Closed with its last reference."""

    __slots__ = ("__weakref__", "handle", "size")

    def __init__(self, handle: int, size: int) -> None:
        """handle: a descriptor, owned from now on. size: of its content in bytes."""
        self.handle = handle
        self.size = size
        weakref.finalize(self, os.close, handle)

    @staticmethod
    def of(contents: Sequence[bytes]) -> "MediaBlock":
        """Return a block of these bytes, one after the other. Raises OSError."""
        block = MediaBlock(
            os.memfd_create(_name(), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), sum(map(len, contents))
        )
        for content in contents:
            left = memoryview(content)
            while left:
                left = left[os.write(block.handle, left[:_WRITE_BYTES]) :]
        fcntl.fcntl(block.handle, fcntl.F_ADD_SEALS, SEALS | fcntl.F_SEAL_SEAL)
        return block

    @staticmethod
    def received(handle: int, size: int) -> "MediaBlock":
        """Return the block of a descriptor that came from another process, and own it. Raises
        UnsealedBlock, and closes the descriptor, unless it is sealed and of this size."""
        block = MediaBlock(handle, size)
        try:
            seals, held = fcntl.fcntl(handle, fcntl.F_GET_SEALS), os.fstat(handle).st_size
        except OSError as error:
            raise UnsealedBlock(f"a descriptor is no memfd ({error})") from error
        if seals & SEALS != SEALS:
            raise UnsealedBlock(f"a block of media has the seals {seals:#x} of {SEALS:#x}")
        if held != size:
            raise UnsealedBlock(f"a block of media has {held} bytes, {size} were declared")
        return block

    @property
    def name(self) -> str | None:
        """Return a name that no other block of this node has; None if the system has no /proc."""
        try:
            return os.readlink(f"/proc/self/fd/{self.handle}")
        except OSError:
            return None

    def read(self, offset: int, length: int) -> bytes:
        """Return a copy of a part. Raises OSError."""
        parts = []
        while length:
            part = os.pread(self.handle, length, offset)
            if not part:
                raise OSError(f"a block of media of {self.size} bytes ends at {offset}")
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _name() -> str:
    # Equal names of two blocks would mix up pictures.
    return f"tasuki-media-{secrets.token_hex(16)}"


class KnownBlocks:
    """The blocks that came to this process and are still in use, by name. A block that comes again,
    as with each turn of a conversation, keeps one descriptor. Any thread."""

    def __init__(self) -> None:
        self._blocks: weakref.WeakValueDictionary[str, MediaBlock] = weakref.WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._blocks)

    def kept(self, block: MediaBlock) -> MediaBlock:
        """Return the block in use with the same name, else this one."""
        name = block.name
        return block if name is None else self._blocks.setdefault(name, block)


def can_seal() -> bool:
    """Return True if this system makes sealed memfds."""
    try:
        MediaBlock.of([b"tasuki"])
    except (OSError, AttributeError):
        return False
    return True


@dataclass(frozen=True)
class MediaPart:
    """The place of media in a block."""

    block: MediaBlock
    offset: int


@dataclass(frozen=True)
class Absent:
    """Media of another process, of which this one knows the length. reason: for errors."""

    reason: str


_ELSEWHERE = Absent("another process holds them")


class Media:
    """The encoded bytes of one picture. held: where they are."""

    __slots__ = ("_length", "held")

    def __init__(self, content: bytes) -> None:
        """content: bytes of this process, not copied."""
        self.held: bytes | MediaPart | Absent = content
        self._length = len(content)

    @staticmethod
    def part(block: MediaBlock, offset: int, length: int) -> "Media":
        """Return media of a block. Raises UnsealedBlock for a part beyond the block."""
        if not (offset >= 0 and length >= 0 and offset + length <= block.size):
            raise UnsealedBlock(
                f"media at [{offset}, {offset + length}) lie outside a block of {block.size} bytes"
            )
        made = Media(b"")
        made.held, made._length = MediaPart(block, offset), length
        return made

    @staticmethod
    def absent(length: int, absence: Absent = _ELSEWHERE) -> "Media":
        """Return media known by their length only."""
        made = Media(b"")
        made.held, made._length = absence, length
        return made

    def __len__(self) -> int:
        return self._length

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Media) or len(self) != len(other):
            return False
        return self.held == other.held or self.content() == other.content()

    def __hash__(self) -> int:
        return hash(self._length)

    def __repr__(self) -> str:
        return f"<media of {self._length} bytes>"

    @property
    def absence(self) -> str | None:
        """Return why the bytes are not in this process; None if they are."""
        return self.held.reason if isinstance(self.held, Absent) else None

    @property
    def charge(self) -> int:
        """Return the bytes to count for media kept after their request. A block counts as more, so
        that a budget of bytes bounds its descriptors too."""
        if isinstance(self.held, MediaPart):
            return max(self._length, BLOCK_CHARGE)
        return self._length

    def ending(self, count: int) -> bytes:
        """Return the last bytes; none of media in another process."""
        match self.held:
            case MediaPart(block, offset):
                count = min(count, self._length)
                return block.read(offset + self._length - count, count)
            case Absent():
                return b""
            case content:
                return content[-count:]

    def content(self) -> bytes:
        """Return the bytes: a copy of those in a block. Raises MediaGone, OSError."""
        match self.held:
            case MediaPart(block, offset):
                return block.read(offset, self._length)
            case Absent(reason):
                raise MediaGone(f"the bytes of a picture are gone: {reason}; send it again")
            case content:
                return content


def sealed(contents: Sequence[bytes]) -> list[Media]:
    """Return the media of these bytes, all in one block. A bytes object that comes again is stored
    once. Raises OSError."""
    once = {id(content): content for content in contents}
    block = MediaBlock.of([*once.values()])
    offsets = dict(zip(once, accumulate(map(len, once.values()), initial=0), strict=False))
    return [Media.part(block, offsets[id(content)], len(content)) for content in contents]


def plain(contents: Sequence[bytes]) -> list[Media]:
    """Return the media of these bytes, for a node of one process."""
    return [Media(content) for content in contents]
