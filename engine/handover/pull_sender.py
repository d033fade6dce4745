"""The return path as a decode engine sees it: prefixes that a prefill node pulls from here.

Owns the states that are pinned, or loaded from below, while they are sent. Emits what the decode
node acts on; messages of pulls that are over are dropped. Invariant: what is being sent stays
pinned and unchanged until end(), which the daemon posts after its sender has drained."""

from functools import partial

from tasuki.engine import messages as m
from tasuki.engine.request import Request

from .at_rest import AtRestQueue
from .base import HandoverContext
from .held_states import HeldState, HeldStates


class PullSender:
    def __init__(self, context: HandoverContext) -> None:
        self._emit = context.emit
        self._states = HeldStates(context)
        self._pinned: dict[m.RoomId, tuple[int, HeldState]] = {}
        """With the first page that is asked for."""
        self.sources = AtRestQueue(context.runner, self._emit_source)

    def is_pinned(self, room: m.RoomId) -> bool:
        """Whether what the room's prefill node asked for is held for it, or on its way up."""
        return room in self._pinned

    def asked(self, message: m.PullAsked, request: Request | None) -> None:
        """request: the one whose room it is, None where that is over."""
        room, tokens = message.room, message.tokens
        if request is None or room in self._pinned:
            self._emit(m.PullRefused(room, "the room is over, or is pulled already"))
            return
        held = None
        if 0 < tokens < len(request.prompt):
            beginning = request.prompt[:tokens]
            held = self._states.hold(beginning, request.salt, partial(self._loaded, room, tokens))
        if held is None:
            self._refuse(room, tokens)
            return
        self._pinned[room] = message.first_page, held
        if held.sent is not None:
            self._put(room)

    def _refuse(self, room: m.RoomId, tokens: int) -> None:
        reason = f"KV and state of the first {tokens} tokens are not here any more"
        self._emit(m.PullRefused(room, reason))

    def _loaded(self, room: m.RoomId, tokens: int, landed: bool) -> None:
        if landed:
            self._put(room)
        else:
            del self._pinned[room]
            self._refuse(room, tokens)

    def _put(self, room: m.RoomId) -> None:
        first, held = self._pinned[room]
        assert held.sent is not None
        pages, slot = held.sent
        self.sources.put(m.PullSource(room, pages[first:], slot))

    def _emit_source(self, source: m.PullSource) -> None:
        if source.room in self._pinned:
            self._emit(m.PullPinned(source))

    def end(self, message: m.PullEnd) -> None:
        found = self._pinned.pop(message.room, None)
        if found is not None:
            self._states.let_go(found[1])
