"""Replacements for the decoder of pictures, with the effects of harmful files on a child.

No file that harms a decoder is kept here. `obeys` is a Decode of
tasuki.model.vision.decoding.worker. It chooses by the content's first word, else it decodes.
"""

import ctypes
import os
import socket
import time

import numpy as np
from numpy.typing import NDArray

from tasuki.model.vision.decoding.messages import DecodeJob
from tasuki.model.vision.decoding.worker import decoded
from tasuki.model.vision.grid import PictureError

OBEYS = "tests.harness.decode_stand_ins:obeys"


def obeys(content: bytes, job: DecodeJob) -> NDArray[np.uint8]:
    pixels = np.full((job.height, job.width, 3), 7, dtype=np.uint8)
    match content.split(b" ")[0]:
        case b"pass":
            return pixels
        case b"sleep":
            time.sleep(3600)
        case b"spin":
            while True:
                pass
        case b"allocate":
            held = []
            while True:
                held.append(np.ones(4 << 20, dtype=np.uint8))
        case b"crash":
            ctypes.string_at(0)
        case b"abort":
            os.abort()
        case b"exit":
            os._exit(3)
        case b"raise":
            raise RuntimeError("a defect of a decoder")
        case b"garbage":
            _answer(b"\xc1 no reply")
            os._exit(0)
        case b"flood":
            while True:
                _answer(b"x" * 4096)
        case b"grow":
            return np.zeros((job.height + 1, job.width, 3), dtype=np.uint8)
        case b"floats":
            return pixels.astype(np.float32)  # type: ignore[return-value]
        case b"long":
            raise PictureError("x" * 10_000)
        case b"socket":
            raise PictureError(_failure(lambda: socket.socket(socket.AF_UNIX)))
        case b"file":
            raise PictureError(_failure(lambda: os.open("/etc/hostname", os.O_RDONLY)))
        case b"fork":
            raise PictureError(_failure(os.fork))
        case b"kill":
            raise PictureError(_failure(lambda: os.kill(os.getppid(), 0)))
        case b"environment":
            raise PictureError(" ".join(sorted(os.environ)))
        case b"descriptors":
            raise PictureError(f"{_open_descriptors()} are open")
    return decoded(content, job)


def _failure(act: object) -> str:
    """Return the name of the system's refusal."""
    assert callable(act)
    try:
        act()
    except OSError as error:
        return f"refused with {error.errno}"
    return "allowed"


def _open_descriptors() -> int:
    """Return the number of open descriptors besides the three streams."""
    found = 0
    for number in range(3, 256):
        try:
            os.fstat(number)
            found += 1
        except OSError:
            continue
    return found


def _answer(data: bytes) -> None:
    """Write to each pipe of this process."""
    for number in range(3, 256):
        try:
            os.write(number, data)
        except OSError:
            continue
