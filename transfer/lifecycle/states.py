"""States of a transfer on each side: one table of legal moves a side, and the four kinds of
transfers.

`protocol/spin/handover.pml` and `protocol/spin/pull.pml` have the same rows as the tables and are
checked exhaustively; a test compares them. Knows no messages, bytes or clocks. Pure. Invariant: a
state machine moves along its table only; any other event raises and changes nothing.
"""

from collections.abc import Set
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from tasuki.transfer.errors import TransferError


class SenderState(Enum):
    IDLE = "not known"
    PARKED = "one of the two calls came, the other is awaited"
    QUEUED = "in the engine's queue"
    AWAITING_MEDIA = "asked for pictures of the prompt; their pieces are awaited"
    PINNING = "asked for; the engine is to pin what was offered"
    ACCEPTED = "leased and about to start; a grant is awaited"
    STREAMING = "granted: layer chunks leave as layers finish"
    READY = "the first token is sent, layer chunks are in flight"
    HOLDING = "transfer complete, the first token is awaited"
    DRAINING = "stopped: posted transfers are awaited"
    DONE = "final status delivered"
    REFUSED = "refused before anything was granted"
    ENDED = "over without a result, and drained"


class SenderEvent(Enum):
    ARRIVE = "the first of gateway's and receiver's call came"
    MEET = "the second came; a Reserve that brings the prompt is both"
    EXPIRE = "the second did not come in time"
    ASK = "of a pull: the receiver granted pages and a slot"
    WANT_MEDIA = "the engine lacks pictures of the prompt"
    MEDIA = "every piece of the wanted pictures came"
    ACCEPT = "the engine leased"
    PINNED = "of a pull: the engine pinned what is asked for"
    REFUSE = "the engine refuses"
    GRANT = "the receiver granted pages and a slot"
    TOKEN = "token produced"
    FLUSHED = "transfer complete"
    STOP = "aborted, receiver lost, lease lost or transport failed"
    DRAINED = "nothing posted is in flight any more"


class ReceiverState(Enum):
    NEW = "not asked yet"
    RESERVED = "asked for"
    ACCEPTED = "about to start there; a lease here is awaited"
    GRANTED = "layer chunks may arrive"
    READY = "the first token is here"
    VERIFYING = "final status is here; digests are compared"
    COMMITTED = "verified: pages and state belong to the tree"
    QUARANTINED = "lost after a grant: no id is used before the fence"
    ENDED = "over, nothing is held"


class ReceiverEvent(Enum):
    RESERVE = "the prompt was sent"
    QUEUED = "progress in the sender's queue"
    MEDIA_WANTED = "the sender asks for pictures of the prompt"
    ACCEPTED = "the sender is about to start"
    REFUSED = "the sender refuses"
    GRANT = "pages and a slot were granted"
    READY = "first token"
    DONE = "final status"
    VERIFIED = "every layer chunk arrived and every digest matches"
    LOSE = "cancelled, failed, mismatched, broken or too late"
    FENCED = "the writer can write no more"


State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
Table: TypeAlias = MappingProxyType[tuple[State, Event], State]
SenderTable: TypeAlias = Table[SenderState, SenderEvent]
ReceiverTable: TypeAlias = Table[ReceiverState, ReceiverEvent]

_S, _SE = SenderState, SenderEvent
_R, _RE = ReceiverState, ReceiverEvent

SENDER: SenderTable = MappingProxyType(
    {
        (_S.IDLE, _SE.ARRIVE): _S.PARKED,
        (_S.IDLE, _SE.STOP): _S.ENDED,
        (_S.PARKED, _SE.MEET): _S.QUEUED,
        (_S.PARKED, _SE.EXPIRE): _S.ENDED,
        (_S.PARKED, _SE.STOP): _S.ENDED,
        (_S.QUEUED, _SE.ACCEPT): _S.ACCEPTED,
        (_S.QUEUED, _SE.REFUSE): _S.REFUSED,
        (_S.QUEUED, _SE.STOP): _S.DRAINING,
        # Pictures come while nothing is allocated. The prompt then takes its turn again.
        (_S.QUEUED, _SE.WANT_MEDIA): _S.AWAITING_MEDIA,
        (_S.AWAITING_MEDIA, _SE.MEDIA): _S.QUEUED,
        (_S.AWAITING_MEDIA, _SE.REFUSE): _S.REFUSED,
        (_S.AWAITING_MEDIA, _SE.STOP): _S.DRAINING,
        (_S.ACCEPTED, _SE.GRANT): _S.STREAMING,
        (_S.ACCEPTED, _SE.STOP): _S.DRAINING,
        (_S.STREAMING, _SE.TOKEN): _S.READY,
        (_S.STREAMING, _SE.FLUSHED): _S.HOLDING,
        (_S.STREAMING, _SE.STOP): _S.DRAINING,
        (_S.READY, _SE.FLUSHED): _S.DONE,
        (_S.READY, _SE.STOP): _S.DRAINING,
        (_S.HOLDING, _SE.TOKEN): _S.DONE,
        (_S.HOLDING, _SE.STOP): _S.DRAINING,
        (_S.DRAINING, _SE.DRAINED): _S.ENDED,
        # After the stop, events already under way and repeated aborts change nothing.
        (_S.DRAINING, _SE.WANT_MEDIA): _S.DRAINING,
        (_S.DRAINING, _SE.MEDIA): _S.DRAINING,
        (_S.DRAINING, _SE.ACCEPT): _S.DRAINING,
        (_S.DRAINING, _SE.REFUSE): _S.DRAINING,
        (_S.DRAINING, _SE.GRANT): _S.DRAINING,
        (_S.DRAINING, _SE.TOKEN): _S.DRAINING,
        (_S.DRAINING, _SE.FLUSHED): _S.DRAINING,
        (_S.DRAINING, _SE.STOP): _S.DRAINING,
        (_S.DONE, _SE.STOP): _S.DONE,
        (_S.REFUSED, _SE.STOP): _S.REFUSED,
        (_S.ENDED, _SE.STOP): _S.ENDED,
        (_S.ENDED, _SE.GRANT): _S.ENDED,
    }
)

RECEIVER: ReceiverTable = MappingProxyType(
    {
        (_R.NEW, _RE.RESERVE): _R.RESERVED,
        (_R.RESERVED, _RE.QUEUED): _R.RESERVED,
        (_R.RESERVED, _RE.MEDIA_WANTED): _R.RESERVED,
        (_R.RESERVED, _RE.ACCEPTED): _R.ACCEPTED,
        (_R.RESERVED, _RE.REFUSED): _R.ENDED,
        (_R.RESERVED, _RE.LOSE): _R.ENDED,
        (_R.ACCEPTED, _RE.GRANT): _R.GRANTED,
        (_R.ACCEPTED, _RE.LOSE): _R.ENDED,
        (_R.GRANTED, _RE.READY): _R.READY,
        (_R.GRANTED, _RE.LOSE): _R.QUARANTINED,
        (_R.READY, _RE.DONE): _R.VERIFYING,
        (_R.READY, _RE.LOSE): _R.QUARANTINED,
        (_R.VERIFYING, _RE.VERIFIED): _R.COMMITTED,
        (_R.VERIFYING, _RE.LOSE): _R.QUARANTINED,
        (_R.QUARANTINED, _RE.FENCED): _R.ENDED,
        # After the loss, events already under way change nothing.
        (_R.QUARANTINED, _RE.READY): _R.QUARANTINED,
        (_R.QUARANTINED, _RE.DONE): _R.QUARANTINED,
        (_R.QUARANTINED, _RE.LOSE): _R.QUARANTINED,
    }
)


def _among(
    table: Table[State, Event], states: Set[State], events: Set[Event]
) -> dict[tuple[State, Event], State]:
    """Return the rows of `table` with both states in `states` and the event in `events`."""
    return {
        (state, event): after
        for (state, event), after in table.items()
        if state in states and after in states and event in events
    }


# A pull is a hand-over with swapped roles, without queue, lease and token. The receiver grants with
# its question; the sender pins the offered state or rejects.
PULL_SENDER: SenderTable = MappingProxyType(
    _among(
        SENDER,
        {_S.STREAMING, _S.DRAINING, _S.DONE, _S.REFUSED, _S.ENDED},
        {_SE.REFUSE, _SE.FLUSHED, _SE.STOP, _SE.DRAINED},
    )
    | {
        (_S.IDLE, _SE.ASK): _S.PINNING,
        (_S.PINNING, _SE.PINNED): _S.STREAMING,
        (_S.PINNING, _SE.REFUSE): _S.REFUSED,
        (_S.PINNING, _SE.STOP): _S.DRAINING,
        # No token is awaited.
        (_S.STREAMING, _SE.FLUSHED): _S.DONE,
        # After the stop, events of the pull already under way change nothing.
        (_S.DRAINING, _SE.PINNED): _S.DRAINING,
        (_S.ENDED, _SE.PINNED): _S.ENDED,
        (_S.ENDED, _SE.REFUSE): _S.ENDED,
    }
)

PULL_RECEIVER: ReceiverTable = MappingProxyType(
    _among(
        RECEIVER,
        {_R.GRANTED, _R.VERIFYING, _R.COMMITTED, _R.QUARANTINED, _R.ENDED},
        {_RE.DONE, _RE.VERIFIED, _RE.LOSE, _RE.FENCED},
    )
    | {
        # Granted with the question; no token comes before the end.
        (_R.NEW, _RE.GRANT): _R.GRANTED,
        (_R.GRANTED, _RE.DONE): _R.VERIFYING,
    }
)


class Announces(Enum):
    """Sender's message between the receiver's destination and the final status."""

    TOKEN = "the first token, once the prompt is computed"
    HELD = "all layer chunks may leave at once"
    NOTHING = "nothing"


class DrainBy(Enum):
    """Way for a receiver to learn of the sender's drain once the transfer's stream has ended."""

    CALL = "it asks by a call of its own"
    RENEWAL = "the sender reports it with its renewals"


@dataclass(frozen=True)
class Kind:
    """Kind of a transfer, by its differences from the others.

    name: for log lines and tables. sender, receiver: tables of the two sides. announces: the
    sender's message between destination and final status. grants_first: True if the receiver sends
    its destination with its first message, and the sender pins a state. queues: True if the sender
    computes a prompt, in turn with others. brings: True if pages and a state are sent; the
    destination of another kind is empty. drain_by: way to learn of a drain after the stream's end.
    """

    name: str
    sender: SenderTable
    receiver: ReceiverTable
    announces: Announces
    grants_first: bool
    queues: bool
    brings: bool
    drain_by: DrainBy


HANDOVER = Kind(
    "hand-over",
    SENDER,
    RECEIVER,
    announces=Announces.TOKEN,
    grants_first=False,
    queues=True,
    brings=True,
    drain_by=DrainBy.CALL,
)
"""Kind of transfer: a prefill node computes a prompt and hands it to a decode node."""
PULL = Kind(
    "pull",
    PULL_SENDER,
    PULL_RECEIVER,
    announces=Announces.NOTHING,
    grants_first=True,
    queues=False,
    brings=True,
    drain_by=DrainBy.RENEWAL,
)
"""Kind of transfer: a prefill node reads a part of a prompt's state from the decode node of the
same hand-over."""
FETCH = Kind(
    "fetch",
    SENDER,
    RECEIVER,
    announces=Announces.HELD,
    grants_first=False,
    queues=False,
    brings=True,
    drain_by=DrainBy.CALL,
)
"""Kind of transfer: a decode node reads a state held by a prefill node."""
COPY = Kind(
    "copy",
    SENDER,
    RECEIVER,
    announces=Announces.TOKEN,
    grants_first=False,
    queues=True,
    brings=False,
    drain_by=DrainBy.CALL,
)
"""Kind of transfer: a decode node migrates a state to a prefill node. It is a hand-over of one
token; within it the prefill node pulls the state."""
KINDS = (HANDOVER, PULL, FETCH, COPY)


class IllegalTransition(TransferError):
    """Event not allowed in the present state: a defect here, or of the peer."""

    def __init__(self, state: Enum, event: Enum) -> None:
        super().__init__(
            f"{type(state).__name__} {state.name} knows no {event.name}; the transfer must "
            f"be aborted"
        )


class Machine(Generic[State, Event]):
    """State machine of one side of one transfer."""

    def __init__(self, table: Table[State, Event], initial: State) -> None:
        self._table = table
        self.state = initial

    def allows(self, event: Event) -> bool:
        return (self.state, event) in self._table

    def apply(self, event: Event) -> State:
        """Move to the event's next state and return it. Raises IllegalTransition."""
        if not self.allows(event):
            raise IllegalTransition(self.state, event)
        self.state = self._table[self.state, event]
        return self.state


def sender_machine(kind: Kind = HANDOVER) -> Machine[SenderState, SenderEvent]:
    return Machine(kind.sender, SenderState.IDLE)


def receiver_machine(kind: Kind = HANDOVER) -> Machine[ReceiverState, ReceiverEvent]:
    return Machine(kind.receiver, ReceiverState.NEW)
