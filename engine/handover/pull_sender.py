"""The return path as a decode engine sees it: prefixes that a prefill node pulls from here.

Owns the allocations that pin them while they are sent. Emits what the decode node acts on; messages
of pulls that are over are dropped. Invariant: what is being sent stays pinned and unchanged until
end(), which the daemon posts after its sender has drained."""

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.pycache._cpp_cache import Allocation
from tasuki.pycache.layout import PAGE_TOKENS

from .at_rest import AtRestQueue
from .base import HandoverContext


class PullSender:
    def __init__(self, context: HandoverContext) -> None:
        self._cache = context.cache
        self._emit = context.emit
        self._pinned: dict[m.RoomId, Allocation] = {}
        self.sources = AtRestQueue(context.runner, self._emit_source)

    def is_pinned(self, room: m.RoomId) -> bool:
        """Whether what the room's prefill node asked for is held for it."""
        return room in self._pinned

    def asked(self, message: m.PullAsked, request: Request | None) -> None:
        """request: the one whose room it is, None where that is over."""
        if request is None or message.room in self._pinned:
            self._emit(m.PullRefused(message.room, "the room is over, or is pulled already"))
            return
        tokens, first = message.tokens, message.first_page
        # A match ends before a prompt's last token, so one more than what is asked for.
        allocation = self._cache.allocate_to_send(request.prompt[: tokens + 1], salt=request.salt)
        if allocation is None or allocation.cached_tokens != tokens:
            if allocation is not None:
                self._cache.release(allocation)
            reason = f"KV and state of the first {tokens} tokens are not here any more"
            self._emit(m.PullRefused(message.room, reason))
            return
        pages: list[int] = allocation.pages.tolist()
        if allocation.source_page is not None:
            pages.append(allocation.source_page)
        assert len(pages) == -(-tokens // PAGE_TOKENS) and allocation.cow_source_slot is not None
        self._pinned[message.room] = allocation
        source = m.PullSource(message.room, tuple(pages[first:]), allocation.cow_source_slot)
        self.sources.put(source)

    def _emit_source(self, source: m.PullSource) -> None:
        if source.room in self._pinned:
            self._emit(m.PullPinned(source))

    def end(self, message: m.PullEnd) -> None:
        allocation = self._pinned.pop(message.room, None)
        if allocation is not None:
            self._cache.release(allocation)
