"""States and pictures copied to this engine from another node. A prefill engine pulls states from a
decode node; a decode engine fetches them from a prefill node. Thread rule: the engine loop's."""

import secrets
from collections import deque
from dataclasses import dataclass, field
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.pictures.handed import with_files
from tasuki.engine.request import AwaitingMedia, Pulling, Request, Waiting
from tasuki.engine.roles.base import HandoverContext
from tasuki.engine.runner.base import AtRestQueue
from tasuki.engine.scheduling.admission import AcceptWindow
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind, ImpossibleRequest
from tasuki.pycache.keys import Keys, first_keys
from tasuki.pycache.prefix_cache import HybridPrefixCache


def _allocated(cache: HybridPrefixCache, prompt: Keys, salt: bytes) -> Allocation | None:
    """Allocate space for KV and state of the whole prompt, to be written by another node. Return
    None if no memory is free now, or the prompt can never fit."""
    try:
        return cache.allocate_to_receive(
            prompt, salt=salt, capacity_tokens=len(prompt), working_slots=1, cursor=None
        )
    except ImpossibleRequest:
        return None


def _written(allocation: Allocation) -> tuple[int, tuple[int, ...], int]:
    """Return the part of an allocation to be written by the other node: first logical page, page
    ids from this page on, slot id."""
    first = allocation.shared_pages
    return first, tuple(allocation.pages[first:].tolist()), allocation.working_slots[0]


def _commit(cache: HybridPrefixCache, allocation: Allocation, tokens: int) -> None:
    """Insert the received pages and state of the first `tokens` tokens into the prefix tree."""
    cache.accept_received(allocation)
    cache.insert(allocation, tokens, allocation.working_slots[0], CheckpointKind.TURN_END)
    cache.release(allocation)


@dataclass
class _Pull:
    """A pull in progress: the sender writes state and KV of `tokens` tokens to the allocation.

    peer: the decode node of the transfer. quarantine: number of the cache's quarantine for a lost
    pull, because the sender may still write; None before the loss.
    """

    request: Request
    peer: str
    allocation: Allocation
    tokens: int
    quarantine: int | None = None


class PullReceiver:
    """The prefill engine's receiver of pulls: it copies a conversation's state from the decode node
    of its last turn.

    Owns the allocations granted to pulls and the quarantines of lost pulls. A pull belongs to a
    transfer and outlives it: data arriving after the request's end is cached too. Emits messages
    for the prefill node. Each method handles one event, and drops messages about ended pulls.
    Invariants: a request pulls at most once. A granted allocation enters the prefix tree only after
    every layer chunk was verified. Otherwise it is freed only after its writer's fence. A transfer
    id has one pull at a time.
    """

    def __init__(self, context: HandoverContext, window: AcceptWindow) -> None:
        """window: the accept window, a limit on transfers begun at the same time, for transfers
        with a pull. A lost pull counts until its fence."""
        self.window = window
        self._cache = context.cache
        self._costs = context.router.costs
        self._emit = context.emit
        self._generations = count(1)
        self._pulls: dict[m.TransferId, _Pull] = {}
        self.grants = AtRestQueue(context.runner, self._emit_grant)

    def begin(self, request: Request, peer: str) -> bool:
        """Allocate space for the tokens offered in the request's transfer request, and ask the
        decode node for them. Return False if there is no memory or the transfer id still has a
        pull; the request then need not wait. REQUIRES: the request waits and has pulled nothing
        yet. The accept window has space for one more transfer of its owner, the decode node
        `peer`."""
        assert request.transfer_request is not None
        request.pull_tried = True
        transfer_id, tokens = request.transfer_request.transfer_id, request.transfer_request.offered
        # A pull outlives its transfer, and the peer chooses the transfer's number. Until that pull
        # is over and fenced, messages with this number are about the old pull.
        if transfer_id in self._pulls:
            return False
        allocation = _allocated(self._cache, first_keys(request.keys, tokens), request.salt)
        if allocation is None:
            return False
        self._pulls[transfer_id] = _Pull(request, peer, allocation, tokens)
        self.window.enter(peer, transfer_id, tokens)
        request.move(Pulling())
        grant = m.PullGrant(transfer_id, next(self._generations), tokens, *_written(allocation))
        self.grants.put(grant)
        return True

    def _emit_grant(self, grant: m.PullGrant) -> None:
        self._emit(m.PullWanted(grant))

    def over(self, message: m.PullCommitted | m.PullLost) -> Request | None:
        """Handle the end of a pull. Insert pulled tokens into the prefix tree, or quarantine a lost
        pull. Return its request, now Waiting, if it still waits for the pull, else None."""
        pull = self._pulls.get(message.transfer_id)
        if pull is None or pull.quarantine is not None:
            return None
        match message:
            case m.PullCommitted(report=report):
                self._forget(message.transfer_id, pull)
                _commit(self._cache, pull.allocation, pull.tokens)
                pull.request.pulled = report
                self._costs.pulled.add(report.bytes, report.seconds)
            case m.PullLost():
                pull.quarantine = self._cache.quarantine(pull.allocation)
        if not isinstance(pull.request.state, Pulling):
            return None
        pull.request.move(Waiting())
        return pull.request

    def fenced(self, message: m.PullFenced) -> None:
        pull = self._pulls.get(message.transfer_id)
        if pull is not None and pull.quarantine is not None:
            self._forget(message.transfer_id, pull)
            self._cache.free_quarantined(pull.quarantine)

    def _forget(self, transfer_id: m.TransferId, pull: _Pull) -> None:
        del self._pulls[transfer_id]
        self.window.leave(pull.peer, transfer_id)


MOST = 8
"""Most fetches at a time. Each fetch holds a slot and pages of this node."""
_ALL = "all"
"""The accept window's single key: all fetches share one limit, from any holder."""


@dataclass
class _Fetch:
    """A fetch in progress: a copy of a state from the prefill node `holder`.

    allocation: memory written by the holder; None before a destination is allocated. quarantine:
    number of the cache's quarantine for a lost fetch, because the holder may still write; None
    before the loss. waiting: requests to continue when the fetch is over.
    """

    transfer_request: m.FetchRequest
    prompt: Keys
    holder: str
    allocation: Allocation | None = None
    quarantine: int | None = None
    waiting: list[Request] = field(default_factory=list)

    @property
    def beginning(self) -> tuple[bytes, bytes]:
        return self.transfer_request.salt, self.prompt.tobytes()


class Fetches:
    """The decode engine's receiver of fetches: it copies states from prefill nodes to this node.

    Owns the fetches' transfers until their ids enter the prefix tree or are freed, and the requests
    waiting for them. Emits messages for the decode node's hand-over client. Drops messages about
    ended fetches. Thread rule: the engine loop's. Invariants: a prefix has at most one fetch at a
    time. A granted allocation enters the prefix tree only after every layer chunk was verified.
    Otherwise it is freed only after its writer's fence. A waiting request continues once, whatever
    the outcome of the fetch. A fetch never waits for memory. At most MOST fetches exist, for at
    most a quarter of the cache's tokens; a lost fetch counts until its fence.
    """

    def __init__(self, context: HandoverContext) -> None:
        self._cache = context.cache
        self._emit = context.emit
        capacity = context.cache.capacity_tokens(context.working_slots)
        self._window = AcceptWindow(capacity, MOST)
        self._generations = count(1)
        self.transfers: dict[m.TransferId, _Fetch] = {}
        """Fetches by transfer id, kept until their ids enter the prefix tree or are free."""
        self._by_beginning: dict[tuple[bytes, bytes], _Fetch] = {}
        """Fetches in progress and not lost, by salt and prefix."""
        self.released: deque[Request] = deque()
        """Requests no longer waiting for a fetch; some may have been aborted."""
        self.grants = AtRestQueue(context.runner, self._emit_grant)

    def fetch(self, request: Request, holder: str, tokens: int, seconds: float) -> None:
        """Fetch the state after the first `tokens` tokens of the request's prompt; the request
        waits for it. A fetch of the same state is shared. If the accept window has no space for
        another, release the request immediately. holder: the prefill node with the state. seconds:
        time limit. REQUIRES: the request is Waiting, and in no queue."""
        request.fetch_tried = True
        if not 0 < tokens < len(request.prompt):
            self.released.append(request)
            return
        prompt = first_keys(request.keys, tokens)
        known = self._by_beginning.get((request.salt, prompt.tobytes()))
        if known is not None:
            known.waiting.append(request)
        elif self._window.has_room(_ALL, tokens):
            self._open(holder, seconds, prompt, request)
        else:
            self.released.append(request)

    def _open(self, holder: str, seconds: float, prompt: Keys, request: Request) -> None:
        transfer_id = m.TransferId(secrets.randbits(62) + 1)
        transfer_request = m.FetchRequest(transfer_id, next(self._generations), request.salt)
        fetch = _Fetch(transfer_request, prompt, holder, waiting=[request])
        self.transfers[transfer_id] = self._by_beginning[fetch.beginning] = fetch
        self._window.enter(_ALL, transfer_id, len(prompt))
        self._emit(m.FetchWanted(transfer_request, prompt, holder, seconds))

    def grant_wanted(self, transfer_id: m.TransferId) -> None:
        """Allocate and send the destination of the pages missing on this node, once. Decline the
        transfer if there is no memory."""
        fetch = self.transfers[transfer_id]
        if fetch.allocation is not None:
            return
        fetch.allocation = _allocated(self._cache, fetch.prompt, fetch.transfer_request.salt)
        if fetch.allocation is None:
            self._emit(m.HandoverDeclined(transfer_id))
            return
        self.grants.put(
            m.Grant(transfer_id, fetch.transfer_request.generation, *_written(fetch.allocation))
        )

    def _emit_grant(self, grant: m.Grant) -> None:
        fetch = self.transfers[grant.transfer_id]
        if fetch.quarantine is None:
            self._emit(m.HandoverGranted(grant))
        else:
            # The ids were not given out before the loss.
            self.fenced(grant.transfer_id)

    def done(self, message: m.RemoteDone) -> None:
        """Insert the fetched pages and state into the prefix tree: every layer chunk arrived and
        its digest matched. Do nothing if the fetch has no allocation or is in quarantine."""
        fetch = self.transfers[message.transfer_id]
        if fetch.allocation is None or fetch.quarantine is not None:
            return
        _commit(self._cache, fetch.allocation, len(fetch.prompt))
        self._forget(fetch)
        self._over(fetch, m.FetchOutcome.FETCHED, message.transfer.bytes)

    def lost(self, message: m.FetchLost) -> None:
        fetch = self.transfers[message.transfer_id]
        if fetch.quarantine is not None:
            return
        if fetch.allocation is None:
            self._forget(fetch)
        else:
            fetch.quarantine = self._cache.quarantine(fetch.allocation)
        self._over(fetch, message.outcome)

    def fenced(self, transfer_id: m.TransferId) -> None:
        fetch = self.transfers[transfer_id]
        if fetch.quarantine is not None:
            self._cache.free_quarantined(fetch.quarantine)
            self._forget(fetch)

    def _forget(self, fetch: _Fetch) -> None:
        del self.transfers[fetch.transfer_request.transfer_id]
        self._window.leave(_ALL, fetch.transfer_request.transfer_id)

    def _over(self, fetch: _Fetch, outcome: m.FetchOutcome, size: int = 0) -> None:
        del self._by_beginning[fetch.beginning]
        self.released.extend(fetch.waiting)
        self._emit(m.StateFetched(outcome, len(fetch.prompt), size, fetch.holder))


class AwaitedMedia:
    """Pictures that a prefill engine needs from the receiver of a transfer.

    A prompt is matched first. Then the files of the pictures with rows to be computed are asked
    for, while the prompt holds no memory in the arena. Files stay with their request until it ends,
    because it may compute them again. Owns the identities of the pictures of live transfers.
    """

    def __init__(self, context: HandoverContext) -> None:
        self._scheduler = context.scheduler
        self._emit = context.emit
        self._handed: dict[m.TransferId, tuple[m.HandedPicture, ...]] = {}

    def enter(self, transfer_id: m.TransferId, handed: tuple[m.HandedPicture, ...]) -> None:
        """Keep the identities of a new transfer's pictures, until leave()."""
        self._handed[transfer_id] = handed

    def leave(self, transfer_id: m.TransferId) -> None:
        """Forget a transfer. Idempotent."""
        self._handed.pop(transfer_id, None)

    def ask(self, request: Request, transfer_id: m.TransferId, start: int) -> bool:
        """Ask for the files of pictures with a row to be computed at `start` or later. Return False
        if none is missing. REQUIRES: the request is Waiting, and holds no memory."""
        pictures = self._scheduler.pictures
        if request.pictures is None or pictures is None:
            return False
        missing = pictures.missing(request, start)
        if not missing:
            return False
        # One file serves each place of its picture.
        first = {request.pictures.pictures[index].digest: index for index in reversed(missing)}
        wanted = tuple(sorted(first.values()))
        request.move(AwaitingMedia())
        self._emit(m.PicturesWanted(transfer_id, wanted))
        return True

    def came(self, request: Request, message: m.PicturesCame) -> None:
        """Let the request wait for its turn again, with the files. Drop unawaited ones."""
        if not isinstance(request.state, AwaitingMedia):
            return
        handed = self._handed[message.transfer_id]
        assert request.pictures is not None
        request.pictures = with_files(request.pictures, handed, message.files)
        request.move(Waiting())
        self._scheduler.requeue(request)


def is_unseen(request: Request) -> bool:
    """Return True if the prompt is a state with pictures that are unknown here. Only the token
    behind the state may then be computed."""
    return request.pictures is not None and not request.pictures.pictures
