"""The life of a room on each side, as one table of legal moves a role.

spin/handover.pml carries the same rows and is checked exhaustively; a test compares the
two. A pull (pull_states.py) goes through some of the same states. Knows no messages, bytes or
clocks: callers turn what happens into events. Thread rule: one thread a machine.
Invariant: a machine moves only along its table; anything else raises and changes nothing.
"""

from enum import Enum
from types import MappingProxyType
from typing import Generic, TypeAlias, TypeVar

from tasuki.transfer.errors import TransferError


class SenderState(Enum):
    IDLE = "not known"
    PARKED = "one of the two calls came, the other is awaited"
    QUEUED = "in the engine's queue"
    PINNING = "asked for; the engine is to pin what was offered"
    ACCEPTED = "leased and about to start; a grant is awaited"
    STREAMING = "granted: windows leave as layers finish"
    READY = "the first token is sent, windows are in flight"
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
    GRANTED = "windows may land"
    READY = "the first token is here"
    VERIFYING = "final status is here; digests are compared"
    COMMITTED = "verified: pages and state belong to the tree"
    QUARANTINED = "lost after a grant: no id is used before the fence"
    ENDED = "over, nothing is held"


class ReceiverEvent(Enum):
    RESERVE = "the prompt was sent"
    QUEUED = "progress in the sender's queue"
    ACCEPTED = "the sender is about to start"
    REFUSED = "the sender refuses"
    GRANT = "pages and a slot were granted"
    READY = "first token"
    DONE = "final status"
    VERIFIED = "every window landed and every digest matches"
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
        # What was under way when the room stopped, and retried aborts, change nothing.
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
        # What was under way when the room was lost changes nothing.
        (_R.QUARANTINED, _RE.READY): _R.QUARANTINED,
        (_R.QUARANTINED, _RE.DONE): _R.QUARANTINED,
        (_R.QUARANTINED, _RE.LOSE): _R.QUARANTINED,
    }
)


class IllegalTransition(TransferError):
    """An event that the state does not know: a defect here, or a peer that breaks the protocol."""

    def __init__(self, state: Enum, event: Enum) -> None:
        super().__init__(
            f"{type(state).__name__} {state.name} knows no {event.name}; the room must be aborted"
        )


class Machine(Generic[State, Event]):
    """One room of one role."""

    def __init__(self, table: Table[State, Event], initial: State) -> None:
        self._table = table
        self.state = initial

    def allows(self, event: Event) -> bool:
        return (self.state, event) in self._table

    def apply(self, event: Event) -> State:
        """Move. Raises IllegalTransition naming state and event."""
        if not self.allows(event):
            raise IllegalTransition(self.state, event)
        self.state = self._table[self.state, event]
        return self.state


def sender_machine() -> Machine[SenderState, SenderEvent]:
    return Machine(SENDER, SenderState.IDLE)


def receiver_machine() -> Machine[ReceiverState, ReceiverEvent]:
    return Machine(RECEIVER, ReceiverState.NEW)
