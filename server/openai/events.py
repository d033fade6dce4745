"""A stream's server-sent events, of which only what differs is encoded for each.

Pure functions and immutable values. Invariant: an event is, byte by byte, what `to_json` makes of
its whole body.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# A string alone is the same in every encoder; this one is the fastest.
_text_to_json = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(body)


def with_fields(choice: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return the choice, as JSON, with further fields at its end. Their texts are ASCII."""
    return b"%b,%b" % (choice[:-1], msgspec.json.encode(fields)[1:])


class TextChoice:
    """A chunk's choice that holds text, in one place or more, and nothing else that differs."""

    def __init__(self, choice: Callable[[str], dict[str, Any]]) -> None:
        """choice: the choice that holds a text. REQUIRES: no other string in it is empty."""
        self.around = to_json(choice("")).split(b'""')

    def holding(self, text: str) -> bytes:
        return _text_to_json(text).join(self.around)


class ChunkEvents:
    """Events of one stream's chunks, each of one choice."""

    def __init__(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """before, after: a chunk's fields before and after its choices."""
        self._before = b"data: " + to_json({**before, "choices": []}).removesuffix(b"]}")
        self._after = to_json({"choices": [], **after}).removeprefix(b'{"choices":[') + b"\n\n"

    def of(self, choices: Sequence[bytes]) -> bytes:
        """choices: of one event each, as JSON."""
        return b"".join([b"%b%b%b" % (self._before, choice, self._after) for choice in choices])

    def of_each(self, choices: Sequence[bytes], after: Mapping[str, Any]) -> bytes:
        """As `of`, with other fields after the choices. Their texts are ASCII."""
        fields = b",%b" % msgspec.json.encode(after)[1:] if after else b"}"
        return b"".join([b"%b%b]%b\n\n" % (self._before, one, fields) for one in choices])

    def of_text(self, choice: TextChoice) -> Callable[[str], bytes]:
        """What makes the event of a choice that holds a text: as `of`, at half of its cost."""
        around = list(choice.around)
        around[0] = self._before + around[0]
        around[-1] += self._after
        return lambda text: _text_to_json(text).join(around)
