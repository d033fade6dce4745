"""Memory shared with a decoding process: encoded bytes in, pixels out, without a copy on a socket.

Each is a memfd. Its size is sealed, so no reader meets a page that was cut off. The encoded bytes
are sealed against writes too. A file has one owner, who closes it; mappings outlive it. One thread
each.
"""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from tasuki.model.vision.config import COLOURS
from tasuki.model.vision.processor import Size

_SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_ALL_SEALS = _SIZE_SEALS | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


@contextmanager
def shared_content(content: bytes) -> Iterator[int]:
    """Yield a descriptor of a sealed copy of the bytes. Raises OSError without memory."""
    handle = os.memfd_create("tasuki-picture", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _ALL_SEALS)
        yield handle
    finally:
        os.close(handle)


@contextmanager
def shared_pixels(size: Size) -> Iterator[int]:
    """Yield a descriptor of memory for pixels of that size. Raises OSError without memory."""
    handle = os.memfd_create("tasuki-pixels", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(handle, pixel_bytes(size))
        fcntl.fcntl(handle, fcntl.F_ADD_SEALS, _SIZE_SEALS | fcntl.F_SEAL_SEAL)
        yield handle
    finally:
        os.close(handle)


def pixel_bytes(size: Size) -> int:
    return COLOURS * size.pixels


def mapped_content(handle: int) -> bytes:
    """Return a copy of shared bytes. Raises OSError, ValueError for an empty file."""
    with mmap.mmap(handle, 0, prot=mmap.PROT_READ) as view:
        return view[:]


def mapped_pixels(handle: int, size: Size) -> NDArray[np.uint8]:
    """Return the shared pixels [height, width, 3] uint8, writable. The memory lives as long as the
    array. Raises OSError."""
    view = mmap.mmap(handle, pixel_bytes(size))
    return np.frombuffer(view, dtype=np.uint8).reshape(size.height, size.width, COLOURS)
