"""Server-sent events with a name, which is their body's type. Pure functions, immutable values."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec


def named_event(body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), msgspec.json.encode(body))


def bodies_of(events: bytes) -> Iterator[bytes]:
    """Return the bodies, as JSON, of whole events that named_event() made."""
    for event in events.split(b"\n\n")[:-1]:
        # JSON has no line's end outside of its strings, and an escaped one within.
        yield event.partition(b"\ndata: ")[2]


class TextEvent:
    """Events that differ in one text. Each is, byte by byte, what named_event() makes of it."""

    def __init__(self, body: Callable[[str], dict[str, Any]]) -> None:
        """body: the one that holds a text. REQUIRES: no other string in it is empty."""
        self._before, self._after = named_event(body("")).split(b'""')

    def holding(self, text: str) -> bytes:
        return b"%b%b%b" % (self._before, msgspec.json.encode(text), self._after)
