"""Frames between a front worker and the node's registry, as between a front and its engine
(engine/apart/codec.py). Pure; one thread at a time for each reader."""

from collections.abc import Sequence
from typing import Any

from tasuki.engine.apart.codec import FrameReader, framed, values_of
from tasuki.engine.messages.packing import reader_of

from .messages import KINDS

_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_READ = tuple(map(reader_of, KINDS))


def worker_frame(messages: Sequence[Any]) -> bytearray:
    """Raises KeyError of what is no message, and msgspec's errors of what is no plain value."""
    return framed([(_NUMBER_OF[type(message)], message) for message in messages])


def worker_frames() -> FrameReader:
    return FrameReader(lambda body: [value for _, value in values_of(body, _READ)])
