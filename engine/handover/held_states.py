"""States stored on this node while another node reads them. A state in the arena is pinned; a state
in a lower tier is loaded first.

Owns no state after returning it: its user calls let_go(). Thread rule: the engine loop's.
Invariant: only the state after exactly the named tokens, under their salt, is sent, once every page
was acknowledged (a load is complete and verified).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.engine.roles.base import HandoverContext
from tasuki.engine.runner.base import AtRestQueue
from tasuki.engine.scheduling.admission import AcceptWindow
from tasuki.engine.tiers.lower_tiers import LoadEnd
from tasuki.pycache._cpp_cache import Allocation, ImpossibleRequest
from tasuki.pycache.keys import Keys, first_keys, repeat_last
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.chunks.chunk import FinishedLayers
from tasuki.transfer.sending.sender import Sender


@dataclass(eq=False)
class HeldState:
    """A stored state kept for another node to read. sent: ids of all pages from the prompt's start
    to the state, and the state's slot id; None while the state is being loaded."""

    allocation: Allocation
    sent: tuple[tuple[int, ...], int] | None


class HeldStates:
    def __init__(self, context: HandoverContext) -> None:
        self._cache = context.cache
        self._tiers = context.tiers

    def hold(self, tokens: Keys, salt: bytes, loaded: Callable[[bool], None]) -> HeldState | None:
        """Pin the state after all of `tokens`, or begin to load it. Return None if the state is not
        on this node, or cannot be loaded now.

        loaded: called once with the success of a load, unless let_go() came first. After False the
        state is gone.
        """
        # A match ends before a prompt's last token.
        prompt = repeat_last(tokens)
        return self._pinned(prompt, salt) or self._loading(prompt, salt, loaded)

    def _pinned(self, prompt: Keys, salt: bytes) -> HeldState | None:
        allocation = self._cache.allocate_to_send(prompt, salt=salt)
        if allocation is None:
            return None
        if allocation.cached_tokens != len(prompt) - 1:
            self._cache.release(allocation)
            return None
        pages: list[int] = allocation.pages.tolist()
        if allocation.source_page is not None:
            pages.append(allocation.source_page)
        assert len(pages) == -(-allocation.cached_tokens // PAGE_TOKENS)
        assert allocation.cow_source_slot is not None
        return HeldState(allocation, (tuple(pages), allocation.cow_source_slot))

    def _loading(
        self, prompt: Keys, salt: bytes, loaded: Callable[[bool], None]
    ) -> HeldState | None:
        tiers, tokens = self._tiers, len(prompt) - 1
        if tiers is None:
            return None
        match = self._cache.match(prompt, salt, None)
        if all(state.boundary != tokens for state in match.stored):
            return None
        try:
            allocation = self._cache.allocate_or_load(
                prompt,
                salt=salt,
                capacity_tokens=len(prompt),
                working_slots=1,
                load_wait=tiers.load_wait,
            )
        except ImpossibleRequest:
            # A disk keeps states of an earlier, larger arena.
            return None
        if allocation is None:
            return None
        if allocation.load is None:
            self._cache.release(allocation)
            return None
        is_wanted = allocation.load.boundary == tokens
        held = HeldState(allocation, None)
        tiers.load(allocation, lambda end: self._load_ended(held, end, loaded))
        if is_wanted:
            return held
        # A partial load pays only if the rest is computed, and nothing is computed here.
        tiers.give_up(allocation)
        return None

    def _load_ended(self, held: HeldState, end: LoadEnd, loaded: Callable[[bool], None]) -> None:
        allocation = held.allocation
        if end is LoadEnd.LANDED:
            count = -(-allocation.cached_tokens // PAGE_TOKENS)
            held.sent = tuple(allocation.pages[:count].tolist()), allocation.working_slots[0]
        elif end is LoadEnd.FAILED:
            self._cache.release(allocation)
        loaded(end is LoadEnd.LANDED)

    def let_go(self, held: HeldState) -> None:
        """Release a state kept by hold(); give up its load if nothing could be sent yet. REQUIRES:
        no sender reads it any more."""
        if held.sent is None:
            assert self._tiers is not None
            self._tiers.give_up(held.allocation)
        else:
            self._cache.release(held.allocation)


class PullSender:
    """The decode engine's sender of pulls: a prefill node copies prefixes from this node.

    Owns the states pinned, or loaded from a lower tier, while they are sent. Emits messages for the
    decode node. Drops messages about ended pulls. Invariant: a state being sent stays pinned and
    unchanged until end(), posted by the daemon after its sender has drained.
    """

    def __init__(self, context: HandoverContext) -> None:
        self._emit = context.emit
        self._states = HeldStates(context)
        self._pinned: dict[m.TransferId, tuple[int, HeldState]] = {}
        """First logical page asked for, and the state being sent, by transfer id."""
        self.sources = AtRestQueue(context.runner, self._emit_source)

    def is_pinned(self, transfer_id: m.TransferId) -> bool:
        """Return True if a pulled state of the transfer is pinned or being loaded."""
        return transfer_id in self._pinned

    def asked(self, message: m.PullAsked, request: Request | None) -> None:
        """Pin or load the state asked for by a prefill node. Refuse a second pull, or one of a
        state not held. request: the transfer's request; None if the transfer is over."""
        transfer_id, tokens = message.transfer_id, message.tokens
        if request is None or transfer_id in self._pinned:
            self._emit(m.PullRefused(transfer_id, "the transfer is over, or is pulled already"))
            return
        held = None
        if 0 < tokens < len(request.prompt):
            beginning = first_keys(request.keys, tokens)
            held = self._states.hold(
                beginning, request.salt, partial(self._loaded, transfer_id, tokens)
            )
        if held is None:
            self._refuse(transfer_id, tokens)
            return
        self._pinned[transfer_id] = message.first_page, held
        if held.sent is not None:
            self._put(transfer_id)

    def _refuse(self, transfer_id: m.TransferId, tokens: int) -> None:
        reason = f"KV and state of the first {tokens} tokens are not here any more"
        self._emit(m.PullRefused(transfer_id, reason))

    def _loaded(self, transfer_id: m.TransferId, tokens: int, arrived: bool) -> None:
        if arrived:
            self._put(transfer_id)
        else:
            del self._pinned[transfer_id]
            self._refuse(transfer_id, tokens)

    def _put(self, transfer_id: m.TransferId) -> None:
        first, held = self._pinned[transfer_id]
        assert held.sent is not None
        pages, slot = held.sent
        self.sources.put(m.PullSource(transfer_id, pages[first:], slot))

    def _emit_source(self, source: m.PullSource) -> None:
        if source.transfer_id in self._pinned:
            self._emit(m.PullPinned(source))

    def end(self, message: m.PullEnd) -> None:
        found = self._pinned.pop(message.transfer_id, None)
        if found is not None:
            self._states.let_go(found[1])


MOST_OF_A_NODE = 8
"""Most fetches from this prefill node by one decode node at a time."""
MOST_IN_ALL = 32
_ALL = "all"


class HeldSender:
    """The prefill engine's sender of fetches: decode nodes copy states from this node.

    Owns the allocations to pin states while they are read or loaded from a lower tier. Has no
    queue: a fetched state waits for no prompt. Thread rule: the engine loop's. Invariants: only the
    state after exactly the named tokens, under their salt, is sent. A loaded state is sent once the
    load was acknowledged; a failed or late load is refused. A state stays pinned and unchanged
    until end(), posted by the daemon after its sender has drained. The accept windows bound the
    pinned tokens, per decode node and in total.
    """

    def __init__(self, context: HandoverContext, sender: Sender) -> None:
        self._emit = context.emit
        self._sender = sender
        capacity = context.cache.capacity_tokens(context.working_slots)
        self._of_node = AcceptWindow(capacity, MOST_OF_A_NODE)
        self._in_all = AcceptWindow(capacity, MOST_IN_ALL)
        self._states = HeldStates(context)
        self.held: dict[m.TransferId, tuple[str, HeldState]] = {}
        """Name of the fetching decode node and the state it reads, by transfer id."""
        self.sources = AtRestQueue(context.runner, self._accept)

    def reserve(self, message: m.FetchReserve) -> None:
        """Pin or load the state of a fetch. Refuse it with BUSY beyond the limits of tokens, or
        with NOT_HELD. REQUIRES: no other transfer has the same transfer id."""
        transfer_id, peer = message.transfer_request.transfer_id, message.peer
        tokens = len(message.prompt)
        if not (self._of_node.has_room(peer, tokens) and self._in_all.has_room(_ALL, tokens)):
            self._emit(m.FetchRefused(transfer_id, m.FetchRefusal.BUSY))
            return
        held = self._states.hold(
            message.prompt, message.transfer_request.salt, partial(self._loaded, transfer_id)
        )
        if held is None:
            self._emit(m.FetchRefused(transfer_id, m.FetchRefusal.NOT_HELD))
            return
        self.held[transfer_id] = peer, held
        self._of_node.enter(peer, transfer_id, tokens)
        self._in_all.enter(_ALL, transfer_id, tokens)
        if held.sent is not None:
            self.sources.put(transfer_id)

    def _loaded(self, transfer_id: m.TransferId, arrived: bool) -> None:
        if arrived:
            self.sources.put(transfer_id)
        else:
            self._forget(transfer_id)
            self._emit(m.FetchRefused(transfer_id, m.FetchRefusal.NOT_HELD))

    def _accept(self, transfer_id: m.TransferId) -> None:
        if transfer_id in self.held:
            self._emit(m.PrefillAccepted(transfer_id))

    def start(self, grant: m.Grant) -> None:
        """Plan to send all pages missing at the receiver together, because the receiver granted a
        destination. Do nothing if the state is not loaded. REQUIRES: the transfer's state is in
        `held`."""
        _, held = self.held[grant.transfer_id]
        if held.sent is None:
            return
        (pages, slot), first = held.sent, grant.first_page
        plan = FinishedLayers.long_finished(first, pages[first:], slot)
        self._sender.plan_forward(grant.transfer_id, plan)
        self._emit(m.StateHeld(grant.transfer_id))

    def end(self, transfer_id: m.TransferId) -> None:
        """Release the state of an ended fetch, after its sender has drained. REQUIRES: the
        transfer's state is in `held`."""
        self._states.let_go(self._forget(transfer_id))

    def _forget(self, transfer_id: m.TransferId) -> HeldState:
        peer, held = self.held.pop(transfer_id)
        self._of_node.leave(peer, transfer_id)
        self._in_all.leave(_ALL, transfer_id)
        return held
