"""The fields of a response that no answer changes: short ones, and the echoes of its request.

Immutable values. Invariant: the echoes are held once, as JSON, and only the events that begin and
end a response hold them. They may be as long as the body that asked for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

_WITHOUT_ECHOES: dict[str, Any] = {
    "instructions": None,
    "metadata": {},
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
}
"""Clients read these fields of every response; none of them is left out."""


@dataclass(frozen=True)
class ResponseHead:
    """brief: all fields, without what the request says of itself. whole: all fields. Their values
    are JSON values and msgspec.Raw. kept_bytes: memory of the echoes. with_hit: usage explains the
    hit. carries_reasoning: items of reasoning have their text encoded too."""

    brief: Mapping[str, Any]
    whole: Mapping[str, Any]
    kept_bytes: int
    with_hit: bool
    carries_reasoning: bool

    @staticmethod
    def of(
        plain: Mapping[str, Any],
        echoed: Mapping[str, Any],
        with_hit: bool = False,
        *,
        carries_reasoning: bool = False,
    ) -> "ResponseHead":
        """Return the head of these fields. plain: short ones. echoed: the request's own, by the
        names of _WITHOUT_ECHOES; those that are left out are not echoed."""
        raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in echoed.items()}
        brief = {**plain, **_WITHOUT_ECHOES}
        size = sum(len(bytes(value)) for value in raw.values())
        # An event that waits for its client has them once more.
        return ResponseHead(brief, {**brief, **raw}, 2 * size, with_hit, carries_reasoning)

    @property
    def id(self) -> str:
        """The response's."""
        name: str = self.whole["id"]
        return name
