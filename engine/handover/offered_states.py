"""Every state that a decode engine offers to prefill nodes, in a room each: its own where it ends,
and those of prefill nodes that end.

Owns no room: it asks for them, and gives them up. Thread rule: the engine loop's. Invariant: an
heir that pulls nothing is given no grant, since it has the state, or would compute it.
"""

import secrets
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.handover.brought_states import Fetches
from tasuki.engine.handover.decode_rooms import DecodeRoom, DecodeRooms
from tasuki.engine.handover.room_accounts import AcceptWindow
from tasuki.engine.intake import Intake
from tasuki.engine.request import Aborted, Finished, Request
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import HeldState
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache


class LeavingReport:
    """What an engine that ends says of the states that it leaves: each as its end is known, all of
    them to whoever asked. Owns the counts and the queries. Thread rule: the engine loop's.
    Invariant: every query is answered once, by what was counted until then.
    """

    def __init__(self, emit: Callable[[m.Outbox], None]) -> None:
        self._emit = emit
        self._asked: list[int] = []
        self._outcomes: Counter[m.HeirOutcome] = Counter()
        self._tokens = self._bytes = 0

    @property
    def asked(self) -> bool:
        """Whether a query waits."""
        return bool(self._asked)

    def ask(self, query_id: int) -> None:
        self._asked.append(query_id)

    def ended(self, outcome: m.HeirOutcome, tokens: int, size: int = 0, heir: str = "") -> None:
        """Of a state of so many tokens. size: bytes that the heir pulled."""
        self._outcomes[outcome] += 1
        if outcome is m.HeirOutcome.TAKEN:
            self._tokens += tokens
            self._bytes += size
        self._emit(m.StateLeft(outcome, tokens, size, heir))

    def answer(self, untried: int) -> None:
        """untried: states that nobody was asked to take."""
        asked, self._asked = self._asked, []
        states = dict(self._outcomes)
        for query_id in asked:
            self._emit(m.LeftToHeirs(query_id, states, self._tokens, self._bytes, untried))


MOST_STATES = 1024
"""Drawn in all."""
_LAST = 1_000_000
"""Of the priorities at an heir: behind those who are waited for."""


class StateLine:
    """Which states an engine leaves to heirs, and in which order: the line of those that are
    untried.

    Owns the line and who was in it. Asks the cache; holds nothing of it. Thread rule: the engine
    loop's. Invariants: a state is drawn once; what is drawn stands, and is the state behind all
    tokens of the request but the last.
    """

    def __init__(self, cache: HybridPrefixCache, intake: Intake) -> None:
        self._cache = cache
        self._intake = intake
        self._name = f"left-to-heirs-{secrets.token_hex(8)}"
        """Of no caller's request."""
        self._line: deque[HeldState] = deque()
        self._drawn: set[tuple[int, int | None, int]] = set()

    def __len__(self) -> int:
        return len(self._line)

    def form(self) -> None:
        """Anew, of what stands now and was not drawn: the most valuable first."""
        states = self._cache.most_valuable(MOST_STATES)
        self._line = deque(
            state
            for state in states
            if state.boundary >= PAGE_TOKENS and state.name not in self._drawn
        )

    def draw(self) -> Request | None:
        """A request of one token behind the next state; None where there is no more."""
        while self._line and len(self._drawn) < MOST_STATES:
            state = self._line.popleft()
            self._drawn.add(state.name)
            request = self._request(state)
            if request is not None and self.stands(request):
                return request
        return None

    def stands(self, request: Request) -> bool:
        """Whether the state still does that the request is of."""
        match = self._cache.match(request.prompt, request.salt)
        return match.usable_tokens == state_tokens(request)

    def _request(self, state: HeldState) -> Request | None:
        """None where the state is gone, or no node would take a prompt of its length."""
        path = self._cache.path_to(state)
        if path is None:
            return None
        salt, tokens = path
        # A match ends before a prompt's last token, whatever that is.
        prompt = np.append(tokens, tokens[-1:])
        if self._intake.misfit(prompt, len(prompt)) is not None:
            return None
        return as_request(m.RequestId(f"{self._name}-{len(self._drawn)}"), prompt, salt)


def as_request(name: m.RequestId, prompt: m.Tokens, salt: bytes) -> Request:
    """Of one token behind the state that stands before the prompt's last token."""
    return Request(
        name,
        prompt,
        SamplingParams(max_new_tokens=1),
        salt,
        priority=_LAST,
        purpose=m.Purpose.INHERIT,
    )


def state_tokens(request: Request) -> int:
    """Behind so many of its tokens stands the state that it is of."""
    return len(request.prompt) - 1


_HEIR = "heir"
"""Whoever it is: they share the window."""


@dataclass
class _Room:
    request: Request
    bytes: int = 0
    """That its heir was allowed to pull; 0 before."""
    refused: m.HeirOutcome = m.HeirOutcome.DECLINED
    """What became of it where nothing is pulled."""


class StateOffers(ABC):
    """Rooms of one token behind a state, in which prefill nodes that become its heirs pull that.

    Owns the rooms and what each heir may pull; who feeds them decides which states, how many, and
    what an outcome means. Thread rule: the engine loop's. Invariants: rooms that live have no
    more tokens than one heir lets a node pull, and are at most as many as may; each ends with one
    outcome, or is tried once more.
    """

    def __init__(self, context: HandoverContext, most: int) -> None:
        """most: rooms at a time."""
        self._router = context.router
        self._emit = context.emit
        self._rooms: dict[m.RoomId, _Room] = {}
        self._window = AcceptWindow(context.cache.capacity_tokens(context.working_slots), most)

    def __contains__(self, room: m.RoomId) -> bool:
        return room in self._rooms

    @abstractmethod
    def _ended(
        self, request: Request, outcome: m.HeirOutcome, pulled: m.PullReport | None, heir: str
    ) -> None:
        """What became of the state. pulled, heir: where it was taken, else nothing."""

    @abstractmethod
    def _once_more(self, request: Request) -> None:
        """Its room was lost, and another heir may be asked."""

    def _allows(self, size: int) -> bool:
        """Whether a heir may pull so many bytes; they count from then on."""
        return True

    def _has_room(self, request: Request) -> bool:
        return self._window.has_room(_HEIR, len(request.prompt))

    def opened(self, room: m.RoomId, request: Request) -> None:
        self._rooms[room] = _Room(request)
        self._window.enter(_HEIR, room, len(request.prompt))

    def may_pull(self, asked: m.PullAsked) -> bool:
        """Whether what the room's heir lacks is within the bounds."""
        room = self._rooms[asked.room]
        size = self._router.state_bytes(asked.first_page * PAGE_TOKENS, asked.tokens)
        if not self._allows(size):
            room.refused = m.HeirOutcome.TOO_MUCH
            return False
        room.bytes = size
        return True

    def gone(self, room: m.RoomId) -> None:
        """What the room's heir asked for is here no more."""
        self._rooms[room].bytes = 0
        self._rooms[room].refused = m.HeirOutcome.LOST

    def is_pulled(self, room: m.RoomId) -> bool:
        """Whether its heir was given what it lacked: else it would compute it."""
        return self._rooms[room].bytes > 0

    def taken(self, room: m.RoomId, pulled: m.PullReport | None, heir: str) -> None:
        """The room's heir has a token behind the state, having pulled so much."""
        request = self._closed(room).request
        if pulled is None:
            self._ended(request, m.HeirOutcome.LOST, None, "")
        else:
            self._ended(request, m.HeirOutcome.TAKEN, pulled, heir)

    def held(self, room: m.RoomId) -> None:
        self._ended(self._closed(room).request, m.HeirOutcome.HELD, None, "")

    def refused(self, room: m.RoomId) -> None:
        """The room's heir pulls nothing."""
        over = self._closed(room)
        self._ended(over.request, over.refused, None, "")

    def lost(self, room: m.RoomId, elsewhere: bool) -> None:
        """elsewhere: another heir may be asked."""
        request = self._closed(room).request
        if elsewhere:
            self._once_more(request)
        else:
            self._ended(request, m.HeirOutcome.LOST, None, "")

    def _closed(self, room: m.RoomId) -> _Room:
        self._window.leave(_HEIR, room)
        return self._rooms.pop(room)


ALONE = 16
"""States at a time. Together they have no more tokens than one heir of this node's size would let
it pull at once, should all go there: it declines the others."""
BESIDE = 2
"""The same while anything else is in flight: answers come first."""
_PART_OF_ARENA = 4
"""What heirs are sent takes at most a quarter of what this engine can hold: they have states of
their own, which it crowds."""


def bytes_to_leave(cache: HybridPrefixCache) -> int:
    return cache.arena.slabs * cache.arena.layout.slab_bytes // _PART_OF_ARENA


class Heirs(StateOffers):
    """The states that a decode engine leaves to prefill nodes, its heirs, before it ends.

    Owns what is offered when, and how much may be sent. Knows neither rooms' messages nor which
    heir takes what. Thread rule: the engine loop's. Invariants: at most ALONE rooms live at a
    time, and BESIDE while anything else is in flight; bytes that may be pulled never exceed the
    bound; nothing begins before begin() or after end(), and what had begun by then is counted as
    cut.
    """

    def __init__(self, context: HandoverContext) -> None:
        super().__init__(context, ALONE)
        self._left_bytes = bytes_to_leave(context.cache)
        self._struck = False
        """Some heir was refused more bytes than are left."""
        self._report = LeavingReport(context.emit)
        self._over = False
        self._line = StateLine(context.cache, context.intake)
        self._again: deque[Request] = deque()
        """Lost, and to be asked of another heir; or drawn, and without a place yet."""
        self._beside = 0
        """In flight when the line was formed."""

    @property
    def begun(self) -> bool:
        """And not over."""
        return self._report.asked and not self._over

    def begin(self, query_id: int, beside: int) -> None:
        """beside: requests in flight."""
        first = not self._report.asked
        self._report.ask(query_id)
        if self._over:
            self._report.answer(len(self._line))
        elif first:
            self._form_line(beside)

    def next(self, beside: int) -> Request | None:
        """A state to be asked of an heir now, as a request of one token behind it; the caller opens
        its room and calls opened(). None: for now, there is none."""
        if not self.begun:
            return None
        if beside < self._beside and not (self._line and beside):
            # What has ended meanwhile left the states that matter most.
            self._form_line(beside)
        if len(self._rooms) >= (BESIDE if beside else ALONE):
            return None
        request = self._drawn()
        if request is not None and not self._has_room(request):
            self._again.appendleft(request)
            return None
        return request

    def _form_line(self, beside: int) -> None:
        self._beside = beside
        self._line.form()

    def _drawn(self) -> Request | None:
        while self._again:
            request = self._again.popleft()
            if not self._line.stands(request):
                self._ended(request, m.HeirOutcome.LOST, None, "")
            elif not self._is_too_much(request):
                return request
        while self._left_bytes > 0 and (drawn := self._line.draw()) is not None:
            if not self._is_too_much(drawn):
                return drawn
        return None

    def _is_too_much(self, request: Request) -> bool:
        """Once the bound was met, what may be beyond it is offered to nobody: an heir would first
        make room for it, and lose what it has there for nothing."""
        whole = self._router.state_bytes(0, state_tokens(request))
        if not self._struck or whole <= self._left_bytes:
            return False
        self._ended(request, m.HeirOutcome.TOO_MUCH, None, "")
        return True

    def _allows(self, size: int) -> bool:
        if size > self._left_bytes:
            self._struck = True
            return False
        self._left_bytes -= size
        return True

    def _once_more(self, request: Request) -> None:
        self._again.append(request)

    def _ended(
        self, request: Request, outcome: m.HeirOutcome, pulled: m.PullReport | None, heir: str
    ) -> None:
        size = 0 if pulled is None else pulled.bytes
        self._report.ended(outcome, state_tokens(request), size, heir)

    def end_if_over(self, beside: int) -> None:
        """Answer where nothing is in flight, here or at an heir, and nothing is left."""
        if self.begun and not (beside or self._rooms or self._again):
            self._over = True
            self._report.answer(len(self._line))

    def end(self) -> tuple[m.RoomId, ...]:
        """No more; answer. Returns the rooms that live, for the caller to give up."""
        if self._over:
            return ()
        self._over = True
        living = tuple(self._rooms)
        for request in (*(room.request for room in self._rooms.values()), *self._again):
            self._ended(request, m.HeirOutcome.CUT, None, "")
        self._rooms.clear()
        self._again.clear()
        self._report.answer(len(self._line))
        return living


AT_A_TIME = 4
"""Beside answers, and whoever else pulls from here."""


class PassedOn(StateOffers):
    """The states of prefill nodes that end which this decode engine passes on: each is fetched from
    its holder and offered to a prefill node that stays, as a state of this engine's own would be.

    Owns them from PassOn to its answer, but for what the fetch owns meanwhile. Thread rule: the
    engine loop's. Invariants: each is answered once; at most AT_A_TIME are offered at a time; no
    memory and no turn of an answer is waited for; what is here already is not fetched, and where
    this node was handed over what goes on there nothing is done.
    """

    def __init__(self, context: HandoverContext, fetches: Fetches) -> None:
        super().__init__(context, AT_A_TIME)
        self._cache = context.cache
        self._intake = context.intake
        self._fetches = fetches
        self._name = f"passed-on-{secrets.token_hex(8)}"
        """Of no caller's request."""
        self._names = count(1)
        self._queries: dict[m.RequestId, int] = {}
        """By which whoever asked knows them."""
        self._line: deque[Request] = deque()
        """Here, and not offered yet."""

    def take(self, message: m.PassOn) -> None:
        """Fetch it, unless there is no need to; it is offered then."""
        state = message.state
        prompt = np.append(state.prompt, state.prompt[-1:])
        name = m.RequestId(f"{self._name}-{next(self._names)}")
        request = as_request(name, prompt, state.salt)
        self._queries[name] = message.query_id
        if self._intake.misfit(prompt, len(prompt)) is not None:
            self._ended(request, m.HeirOutcome.DECLINED, None, "")
            return
        match = self._cache.match(prompt, state.salt)
        tokens = len(state.prompt)
        if state.known and match.kv_tokens >= tokens:
            # What goes on behind it is here, and comes from here.
            self._ended(request, m.HeirOutcome.HELD, None, "")
        elif match.usable_tokens == tokens:
            self._line.append(request)
        else:
            self._fetches.fetch(request, message.holder, tokens, message.seconds)

    def fetched(self, request: Request) -> None:
        """Its fetch is over, however it ended."""
        self._line.append(request)

    def next(self, available: bool) -> Request | None:
        """A state to be asked of an heir now, as Heirs.next(). available: there may be one."""
        while self._line:
            request = self._line[0]
            if not (available and self._stands(request)):
                self._line.popleft()
                self._ended(request, m.HeirOutcome.LOST, None, "")
            elif len(self._rooms) < AT_A_TIME and self._has_room(request):
                return self._line.popleft()
            else:
                return None
        return None

    def _stands(self, request: Request) -> bool:
        match = self._cache.match(request.prompt, request.salt)
        return match.usable_tokens == state_tokens(request)

    def _once_more(self, request: Request) -> None:
        self._line.append(request)

    def _ended(
        self, request: Request, outcome: m.HeirOutcome, pulled: m.PullReport | None, heir: str
    ) -> None:
        size = 0 if pulled is None else pulled.bytes
        self._emit(m.StatePassedOn(self._queries.pop(request.id), outcome, size, heir))


class Offers:
    def __init__(self, context: HandoverContext, rooms: DecodeRooms, fetches: Fetches) -> None:
        self._cache = context.cache
        self._emit = context.emit
        self._rooms = rooms
        self._heirs = Heirs(context)
        self._passed_on = PassedOn(context, fetches)

    def leave(self, query_id: int, beside: int) -> None:
        """Leave what is here to heirs. beside: requests in flight."""
        self._heirs.begin(query_id, beside)

    def pass_on(self, message: m.PassOn) -> None:
        self._passed_on.take(message)

    def fetched(self, request: Request) -> None:
        """A state that is passed on: its fetch is over, however it ended."""
        self._passed_on.fetched(request)

    def advance(self, available: bool, beside: int) -> None:
        """Offer as many as may be. available: whether a prefill node is connected. beside: requests
        in flight."""
        if not (available or beside) and self._heirs.begun:
            self.end_leaving()
        while available and (own := self._heirs.next(beside)) is not None:
            self._ask(self._heirs, own)
        self._heirs.end_if_over(beside)
        while (passed := self._passed_on.next(available)) is not None:
            self._ask(self._passed_on, passed)

    def _ask(self, offers: StateOffers, request: Request) -> None:
        match = self._cache.match(request.prompt, request.salt)
        offers.opened(self._rooms.ask(request, match), request)

    def _of(self, room: m.RoomId) -> StateOffers:
        return self._passed_on if room in self._passed_on else self._heirs

    def may_pull(self, message: m.PullAsked) -> bool:
        """Whether the room's heir may pull what it asks for; it is refused where not."""
        allowed = self._of(message.room).may_pull(message)
        if not allowed:
            self._emit(m.PullRefused(message.room, "as much was left to heirs as may be"))
        return allowed

    def gone(self, room: m.RoomId) -> None:
        """What its heir asked for is here no more."""
        self._of(room).gone(room)

    def is_pulled(self, room: DecodeRoom) -> bool:
        """Whether its heir pulls the state; the room is over where not."""
        offers = self._of(room.id)
        if offers.is_pulled(room.id):
            return True
        self._emit(m.HandoverCancelled(room.id))
        offers.refused(room.id)
        self._end(room, Finished())
        return False

    def taken(self, room: DecodeRoom, message: m.RemoteReady) -> None:
        """Its heir has a token behind the state."""
        self._of(room.id).taken(room.id, message.pulled, message.prefilled_on)
        self._end(room, Finished())

    def held(self, room_id: m.RoomId) -> None:
        """Its heir has the state already."""
        room = self._rooms.live(room_id)
        if room is not None:
            self._of(room_id).held(room_id)
            self._end(room, Finished())

    def lost(self, room_id: m.RoomId, elsewhere: bool) -> None:
        """The room was lost. elsewhere: another heir may be asked."""
        self._of(room_id).lost(room_id, elsewhere)

    def end_leaving(self) -> None:
        for room_id in self._heirs.end():
            self._emit(m.HandoverCancelled(room_id))
            room = self._rooms.live(room_id)
            assert room is not None
            self._end(room, Aborted())

    def _end(self, room: DecodeRoom, end: Aborted | Finished) -> None:
        self._rooms.give_up(room)
        room.request.move(end)
