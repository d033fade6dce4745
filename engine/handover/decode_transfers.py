"""The transfers asked for by a decode engine, and their memory allocations.

Owns the transfers. Owns their page and slot ids until a request or the prefix tree owns them again.
Emits messages for the decode node's hand-over client. Thread rule: the engine loop's. Invariants:
ids granted to a sender are freed only after the sender's fence, and after the transfer's own early
decode step. Transfers get memory in the order of their senders' requests.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from enum import Enum
from itertools import count
from types import MappingProxyType

from tasuki.engine import messages as m
from tasuki.engine.accounting import TransferNames, breakdown
from tasuki.engine.handover.early_start import EarlyStart
from tasuki.engine.messages import HitBreakdown, RemoteDone, TransferId
from tasuki.engine.request import AwaitingPrefill, IllegalMove, Receiving, Request
from tasuki.engine.roles.base import HandoverContext
from tasuki.engine.roles.early_steps import EarlyStep
from tasuki.engine.routing import usable_here
from tasuki.engine.runner.base import AtRestQueue
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import Allocation, ImpossibleRequest, Match
from tasuki.pycache.layout import PAGE_TOKENS


class DecodeTransferState(Enum):
    ASKED = "a prefill node has the prompt; nothing is held here"
    WANTED = "the prefill node is about to start: an allocation is to be granted"
    BARE = "the prefill node computes the prompt for its first token alone: nothing was granted"
    GRANTED = "the request's allocation is the sender's to write"
    READY = "the first token is out; layer chunks may arrive"
    DONE = "every layer chunk arrived and matched, but the transfer's step still runs"
    QUARANTINED = "lost: the sender may still write the ids"
    FENCED = "the sender writes no more; the step may for a layer more"
    OVER = "holds nothing; the engine has forgotten the transfer"


_S = DecodeTransferState
MOVES: Mapping[DecodeTransferState, Set[DecodeTransferState]] = MappingProxyType(
    {
        _S.ASKED: {_S.WANTED, _S.BARE, _S.OVER},
        _S.WANTED: {_S.ASKED, _S.GRANTED, _S.OVER},
        _S.BARE: {_S.OVER},
        _S.GRANTED: {_S.READY, _S.QUARANTINED},
        _S.READY: {_S.DONE, _S.QUARANTINED, _S.OVER},
        _S.DONE: {_S.QUARANTINED, _S.OVER},
        _S.QUARANTINED: {_S.FENCED, _S.OVER},
        _S.FENCED: {_S.OVER},
        _S.OVER: set(),
    }
)
_LOST_OR_OVER = frozenset({_S.QUARANTINED, _S.FENCED, _S.OVER})


@dataclass
class DecodeTransfer:
    """One hand-over in a decode engine, as a state machine; an illegal move raises.

    The straight path is ASKED -> WANTED -> GRANTED -> READY -> DONE -> OVER. DONE is skipped if no
    early decode step still runs at the end. If the first token is the whole answer, the path is
    ASKED -> BARE -> OVER. A lost hand-over with a granted destination is QUARANTINED until its
    writer is fenced. Then it is FENCED while the transfer's own early step may still write.
    """

    id: TransferId
    request: Request
    held: HitBreakdown
    """The prompt's part in this node's cache at the time of the request to the prefill node."""
    state: DecodeTransferState = DecodeTransferState.ASKED
    refused_at: int | None = None
    """While WANTED: the cache's version of free memory (`room_version`) at the last failed
    allocation; None before a failure."""
    step: EarlyStep | None = None
    """From READY on: the decode step computing the second token while layer chunks arrive; None if
    it was not begun."""
    done: RemoteDone | None = None
    """While DONE: the message about the complete transfer."""
    quarantine: int | None = None
    """Number of the cache's quarantine for the page and slot ids once it is lost; else None."""

    def move(self, state: DecodeTransferState) -> None:
        if state not in MOVES[self.state]:
            raise IllegalMove(f"transfer {self.id}: {self.state.name} -> {state.name}")
        self.state = state

    @property
    def live(self) -> bool:
        """True if the request still waits for this transfer."""
        return self.state not in _LOST_OR_OVER

    @property
    def running_step(self) -> EarlyStep | None:
        """Return the early decode step if it may still write to pages or slots of the transfer,
        else None."""
        return None if self.step is None or self.step.ended else self.step


_FIRST_TOKEN_ALONE = SamplingParams(max_new_tokens=1)
"""Sampling parameters sent to a prefill node if its token is not needed. The prefill node samples
one token anyway."""


class DecodeTransfers:
    def __init__(self, context: HandoverContext, early: EarlyStart) -> None:
        self._cache = context.cache
        self._scheduler = context.scheduler
        self._emit = context.emit
        self._working_slots = context.working_slots
        self._early = early
        self._generations = count(1)
        self._transfers: dict[m.TransferId, DecodeTransfer] = {}
        self._wanted: deque[DecodeTransfer] = deque()
        self._coming = 0
        self.names = TransferNames()
        self._grants = AtRestQueue(context.runner, self._emit_grant)

    def __contains__(self, transfer_id: m.TransferId) -> bool:
        return transfer_id in self._transfers

    @property
    def waits(self) -> bool:
        """True if a granted destination waits until the device has finished with its memory."""
        return self._grants.waiting

    @property
    def coming(self) -> int:
        """Return the number of live transfers with an answer to be decoded on this node."""
        return self._coming

    @property
    def first_wanted(self) -> DecodeTransfer | None:
        """The first transfer waiting for memory; None without one."""
        return self._wanted[0] if self._wanted else None

    def count(self, purpose: m.Purpose) -> int:
        return sum(transfer.request.purpose is purpose for transfer in self._transfers.values())

    def at(self, transfer_id: m.TransferId, *states: DecodeTransferState) -> DecodeTransfer | None:
        """Return the transfer if it is in one of these states, else None."""
        transfer = self._transfers.get(transfer_id)
        return transfer if transfer is not None and transfer.state in states else None

    def live(self, transfer_id: m.TransferId) -> DecodeTransfer | None:
        """Return the transfer if its request still waits for it, else None."""
        transfer = self._transfers.get(transfer_id)
        return transfer if transfer is not None and transfer.live else None

    def ask(self, request: Request, match: Match) -> m.TransferId:
        """Ask a prefill node for the request's prompt. This node allocates nothing until the
        prefill node is about to start. match: the prompt's match in this node's cache."""
        named, request.gateway_transfer = request.gateway_transfer, None
        if named is not None and named.transfer_id in self._transfers:
            # An earlier request is already queued for that transfer.
            named = None
        transfer_request = m.TransferRequest(
            transfer_id=m.TransferId(secrets.randbits(63)) if named is None else named.transfer_id,
            generation=next(self._generations),
            kv_matched=match.kv_tokens // PAGE_TOKENS * PAGE_TOKENS,
            sampling=_FIRST_TOKEN_ALONE if request.forks else request.sampling,
            salt=request.salt,
            marks=request.marks,
            offered=usable_here(match),
            caller=request.caller,
            priority=request.priority,
            due_seconds=self._scheduler.due_seconds(request),
            message_end=request.message_end,
        )
        request.transfer_request = transfer_request
        request.asked_at = time.monotonic()
        request.move(AwaitingPrefill(transfer_request.transfer_id))
        self._transfers[transfer_request.transfer_id] = DecodeTransfer(
            transfer_request.transfer_id, request, breakdown(match, None)
        )
        self._coming += goes_on_here(request)
        self.names.note(transfer_request.transfer_id, request.told_as)
        self._emit(
            m.HandoverWanted(
                request.told_as,
                transfer_request,
                request.keys,
                None if named is None else named.sender,
                request.cursor,
                request.purpose,
                request.purpose is m.Purpose.ANSWER and not request.fetch_tried,
                _pictures(request),
                self._encodes(request),
            )
        )
        return transfer_request.transfer_id

    def _encodes(self, request: Request) -> tuple[tuple[int, float], ...]:
        """Return each picture's end in the prompt, and its work in tokens."""
        pictures = self._scheduler.pictures
        if request.pictures is None or pictures is None:
            return ()
        return tuple((one.run.end, pictures.work_of(one)) for one in request.pictures.pictures)

    def want_grant(self, transfer: DecodeTransfer) -> None:
        """Queue the transfer for its allocation, because its sender is about to start. If only the
        first token is needed, emit an empty destination immediately. REQUIRES: the transfer is
        ASKED."""
        if goes_on_here(transfer.request):
            transfer.move(DecodeTransferState.WANTED)
            transfer.refused_at = None
            self._wanted.append(transfer)
            return
        transfer.move(DecodeTransferState.BARE)
        assert transfer.request.transfer_request is not None
        end = -(-len(transfer.request.prompt) // PAGE_TOKENS)
        generation = transfer.request.transfer_request.generation
        self._emit(m.HandoverGranted(m.Grant(transfer.id, generation, end, (), None)))

    def grant(self, gives_way: Callable[[Request], bool]) -> None:
        """Allocate memory for queued transfers, as far as it suffices. Emit each destination once
        the device has finished with its pages and slots. gives_way(request) returns True if another
        request goes before this one."""
        self._grants.advance()
        while self._wanted and self._is_settled(self._wanted[0], gives_way):
            self._wanted.popleft()

    def _is_settled(self, transfer: DecodeTransfer, gives_way: Callable[[Request], bool]) -> bool:
        """Return True if the transfer no longer waits for an allocation. Try the allocation first
        if it may succeed now."""
        room_version = self._cache.room_version
        if transfer.state is not DecodeTransferState.WANTED:
            return True
        if transfer.refused_at == room_version or gives_way(transfer.request):
            return False
        try:
            granted = self._grant(transfer)
        except ImpossibleRequest:
            # Another sender would find no more memory here.
            transfer.request.handover_lost = True
            transfer.move(DecodeTransferState.ASKED)
            self._emit(m.HandoverDeclined(transfer.id))
            return True
        transfer.refused_at = room_version
        return granted

    def _grant(self, transfer: DecodeTransfer) -> bool:
        request = transfer.request
        allocation = self._cache.allocate_to_receive(
            request.keys,
            salt=request.salt,
            capacity_tokens=request.next_capacity,
            working_slots=self._working_slots,
            cursor=request.cursor,
        )
        if allocation is None:
            return False
        first = allocation.shared_pages
        pages = -(-len(request.prompt) // PAGE_TOKENS)
        request.move(Receiving(transfer.id, allocation))
        transfer.move(DecodeTransferState.GRANTED)
        assert request.transfer_request is not None
        self._grants.put(
            m.Grant(
                transfer_id=transfer.id,
                generation=request.transfer_request.generation,
                first_page=first,
                pages=tuple(allocation.pages[first:pages].tolist()),
                slot=allocation.working_slots[0],
            )
        )
        return True

    def _emit_grant(self, grant: m.Grant) -> None:
        transfer = self._transfers.get(grant.transfer_id)
        if transfer is None:
            return
        if transfer.live:
            self._emit(m.HandoverGranted(grant))
        else:
            # The ids were not given out before the loss, so there is no writer to be fenced.
            self.fenced(transfer.id)

    def commit(self, transfer: DecodeTransfer) -> tuple[Allocation, Sampled | None]:
        """Give the received allocation to the transfer's request. Return the allocation, and the
        token sampled by the transfer's early decode step, if any. REQUIRES: every layer chunk
        arrived and its digest matched, and the step has ended."""
        assert isinstance(transfer.request.state, Receiving)
        second = None if transfer.step is None else self._early.take(transfer.step)
        self._coming -= 1
        self._forget(transfer)
        return transfer.request.state.allocation, second

    def give_up(self, transfer: DecodeTransfer) -> None:
        """Quarantine the transfer's granted allocation and discard the token of its early decode
        step. Only forget the transfer if its request is not Receiving. REQUIRES: the transfer is
        live."""
        self._coming -= goes_on_here(transfer.request)
        state = transfer.request.state
        if not isinstance(state, Receiving):
            self._forget(transfer)
            return
        if transfer.step is not None:
            transfer.step.cancel()
        transfer.move(DecodeTransferState.QUARANTINED)
        transfer.quarantine = self._cache.quarantine(state.allocation)

    def fenced(self, transfer_id: m.TransferId) -> None:
        """Free the quarantined pages and slots of a lost transfer, because its sender writes no
        more. Ignore other transfers. If its early decode step still runs, free them at the step's
        end."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.state is not DecodeTransferState.QUARANTINED:
            return
        if transfer.running_step is None:
            self._free(transfer)
        else:
            transfer.move(DecodeTransferState.FENCED)

    def step_ended(self) -> list[tuple[DecodeTransfer, m.RemoteDone]]:
        """Free lost transfers fenced before their early decode step ended. Return the transfers
        completed before their step ended, with their RemoteDone, to be committed."""
        ended = [transfer for transfer in self._transfers.values() if transfer.running_step is None]
        for transfer in ended:
            if transfer.state is DecodeTransferState.FENCED:
                self._free(transfer)
        return [
            (transfer, transfer.done)
            for transfer in ended
            if transfer.state is DecodeTransferState.DONE and transfer.done is not None
        ]

    def _free(self, transfer: DecodeTransfer) -> None:
        assert transfer.quarantine is not None
        if transfer.step is not None:
            self._early.drop()
        self._cache.free_quarantined(transfer.quarantine)
        self._forget(transfer)

    def _forget(self, transfer: DecodeTransfer) -> None:
        transfer.move(DecodeTransferState.OVER)
        del self._transfers[transfer.id]


def _pictures(request: Request) -> tuple[m.PromptPicture, ...]:
    """Return the pictures with a key in the prompt."""
    if request.pictures is None:
        return ()
    return tuple(
        m.PromptPicture(
            *(one.run.start, one.run.rows, one.run.columns),
            one.digest,
            file=one.file,
            source=one.source,
            second=one.second,
        )
        for one in request.pictures.pictures
        if one.run.start <= len(request.prompt)
    )


def goes_on_here(request: Request) -> bool:
    """Return True if this node decodes from the transferred state: the answer has more than one
    token, or forks of the request begin at the state."""
    return request.sampling.max_new_tokens > 1 or bool(request.forks)
