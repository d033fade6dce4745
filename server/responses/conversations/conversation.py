"""A conversation: items in their order, and the exact tokens at which its last response ended.

Immutable values; each change is a new one. Invariant: the turn's tokens are of the first `covered`
items and of nothing else.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tasuki.server.errors import InvalidField
from tasuki.server.responses.stored_responses import StoredTurn
from tasuki.server.text.chat_renderer import MAX_MESSAGES

_ENTRY_BYTES = 1500
"""Of a conversation's objects, and of its places in the store's tables."""
_ITEM_BYTES = 250
"""Of an item's objects."""


@dataclass(frozen=True, slots=True)
class ConversationItem:
    """body: JSON, with the id."""

    id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Conversation:
    """created_at: seconds since 1970. turn: None where the items have to be rendered."""

    id: str
    created_at: int
    metadata: Mapping[str, str]
    items: tuple[ConversationItem, ...] = ()
    turn: StoredTurn | None = None
    covered: int = 0

    @property
    def size(self) -> int:
        """Bytes of memory."""
        items = sum(_ITEM_BYTES + len(item.body) for item in self.items)
        pairs = sum(map(sys.getsizeof, (*self.metadata, *self.metadata.values())))
        turn = 0 if self.turn is None else self.turn.size
        return _ENTRY_BYTES + items + pairs + turn

    @property
    def uncovered(self) -> list[dict[str, Any]]:
        """The items behind the turn."""
        return [msgspec.json.decode(item.body) for item in self.items[self.covered :]]

    def found(self, item_id: str) -> ConversationItem | None:
        return next((item for item in self.items if item.id == item_id), None)

    def named(self, metadata: Mapping[str, str]) -> "Conversation":
        """Return the same with other metadata."""
        return replace(self, metadata=dict(metadata))

    def with_items(self, items: Sequence[ConversationItem]) -> "Conversation":
        """Return the same with these behind its items. Raises InvalidField where an id is taken, or
        where no response could go on from so many."""
        if len(self.items) + len(items) > MAX_MESSAGES:
            raise InvalidField(
                "items", f"would be more than {MAX_MESSAGES} in all: begin another conversation"
            )
        taken = {item.id for item in self.items}
        for item in items:
            if item.id in taken:
                raise InvalidField("items", f"has {item.id!r:.100}, which is there: leave ids out")
        return replace(self, items=(*self.items, *items))

    def answered(
        self, items: Sequence[ConversationItem], turn: StoredTurn | None
    ) -> "Conversation":
        """Return the same with a response's input and output behind it. turn: the response's, where
        it was made of all of this; None: the next one is rendered."""
        whole = (*self.items, *items)
        covered = 0 if turn is None else len(whole)
        return replace(self, items=whole, turn=turn, covered=covered)

    def without(self, item_id: str) -> "Conversation":
        """Return the same without that item."""
        left = tuple(item for item in self.items if item.id != item_id)
        return replace(self, items=left, turn=None, covered=0)
