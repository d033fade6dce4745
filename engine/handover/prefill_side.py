"""The sending half of a hand-over, as a prefill engine sees it: rooms, their windows, their first
token.

Owns rooms; a room's lease is let go only by end(), which its daemon posts after the sender has
drained, so that no window ever reads a page that has a new owner.
"""

import time
from collections.abc import Callable, Iterable, Sequence

from tasuki.engine import messages as m
from tasuki.engine.request import (
    Aborted,
    Active,
    AwaitingGrant,
    Finished,
    HandingOver,
    Prefilling,
    Progress,
    Pulling,
    Request,
    Waiting,
)
from tasuki.engine.routing.cost_learner import RateMeter
from tasuki.engine.scheduling.checkpoint_planner import plan_checkpoints
from tasuki.engine.scheduling.scheduled_sequence import ScheduledSequence
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.windows.window import ForwardPlan

from .room_names import room_name


class HandOn:
    def __init__(
        self,
        cache: HybridPrefixCache,
        sender: Sender,
        emit: Callable[[m.Outbox], None],
        meter: RateMeter,
    ) -> None:
        self._cache = cache
        self._sender = sender
        self._emit = emit
        self._meter = meter
        self._rooms: dict[m.RoomId, Request] = {}
        self._positions: dict[m.RoomId, int] = {}

    @property
    def requests(self) -> list[Request]:
        return list(self._rooms.values())

    def reserve(self, message: m.PrefillReserve) -> Request:
        """REQUIRES: the room is new and its prompt can be served."""
        ticket = message.ticket
        request = Request(
            room_name(ticket.room),
            message.prompt,
            ticket.sampling,
            ticket.salt,
            marks=ticket.marks,
            ticket=ticket,
        )
        self._rooms[ticket.room] = request
        return request

    def knows(self, room: m.RoomId) -> bool:
        return room in self._rooms

    def tell_positions(self, waiting: Iterable[Request]) -> None:
        """Progress for those who queue: queued is not dead."""
        positions = {
            request.ticket.room: position
            for position, request in enumerate(waiting)
            if request.ticket is not None
        }
        for room, position in positions.items():
            if self._positions.get(room) != position:
                self._emit(m.PrefillQueued(room, position))
        self._positions = positions

    def start(self, message: m.PrefillStart) -> Request | None:
        """The receiver granted: the request may run."""
        request = self._rooms.get(message.grant.room)
        if request is None or not isinstance(request.state, AwaitingGrant):
            return None
        lease = request.state.lease
        request.started = time.monotonic(), lease.cached_tokens
        request.move(
            Prefilling(
                lease,
                Progress(lease.cached_tokens),
                checkpoints=plan_checkpoints(
                    request.length, lease.cached_tokens, lease.match, request.marks
                ),
                grant=message.grant,
                pages_sent=message.grant.first_page,
            )
        )
        return request

    def plan_windows(self, work: Sequence[ScheduledSequence], first_tick: int) -> None:
        """Tell the sender what the coming forward will have finished, layer by layer.

        first_tick: the step counter's value once all that was launched before has ended."""
        for item in work:
            state = item.active
            if not isinstance(state, Prefilling) or state.grant is None:
                continue
            last = item.num_sampled > 0
            ready = -(-item.stop // PAGE_TOKENS) if last else item.stop // PAGE_TOKENS
            first = state.pages_sent
            state.pages_sent = max(first, ready)
            self._sender.plan_forward(
                state.grant.room,
                ForwardPlan(
                    first_tick=first_tick,
                    first_logical_page=first,
                    local_pages=tuple(state.lease.pages[first : state.pages_sent].tolist()),
                    state_slot=item.write_slot if last else None,
                ),
            )

    def first_token(self, request: Request, sampled: Sampled) -> None:
        state = request.state
        assert isinstance(state, Prefilling) and request.ticket is not None
        assert request.hit is not None
        request.move(HandingOver(state.lease))
        if request.started is not None:
            at, cached = request.started
            self._meter.here.add(request.length - cached, time.monotonic() - at)
        self._emit(
            m.PrefillToken(
                request.ticket.room,
                sampled.token,
                sampled.logprob,
                sampled.margin,
                request.hit,
                request.pulled,
                request.route,
            )
        )

    def fail(self, request: Request, error: m.RequestError) -> None:
        """Say that the room cannot go on; its lease stays until end(), since windows may be in
        flight."""
        assert request.ticket is not None
        self._emit(m.PrefillRefused(request.ticket.room, error))

    def end(self, message: m.PrefillEnd) -> Request | None:
        """The room is over and drained."""
        request = self._rooms.pop(message.room, None)
        if request is None:
            return None
        match request.state:
            case HandingOver(lease):
                self._cache.release(lease)
                request.move(Finished())
            case AwaitingGrant(lease) | Active(lease=lease):
                self._cache.release(lease)
                request.move(Aborted())
            case Waiting() | Pulling():
                request.move(Aborted())
        self._emit(
            m.RoomEnded(
                message.room,
                len(request.prompt),
                request.hit,
                isinstance(request.state, Finished),
                tuple(request.life),
                message.given_up,
            )
        )
        return request
