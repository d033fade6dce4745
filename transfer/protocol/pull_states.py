"""The return path's life on each side: a pull, the hand-over with roles swapped.

Here the node that answered is the sender and the node that is about to prefill the receiver. The
states are those of handover_states.py, and the tables are its tables without queue, lease and
token: the receiver grants at once, the sender pins what it offered or refuses, and every layer is
finished before the first window leaves. spin/pull.pml carries the same rows and is checked
exhaustively; a test compares the two. Invariant: as in handover_states.py. What is lost here costs
time only: the receiver computes it itself.
"""

from collections.abc import Set
from types import MappingProxyType

from .handover_states import (
    RECEIVER,
    SENDER,
    Event,
    Machine,
    ReceiverEvent,
    ReceiverState,
    ReceiverTable,
    SenderEvent,
    SenderState,
    SenderTable,
    State,
    Table,
)

_S, _SE = SenderState, SenderEvent
_R, _RE = ReceiverState, ReceiverEvent


def _among(
    table: Table[State, Event], states: Set[State], events: Set[Event]
) -> dict[tuple[State, Event], State]:
    """The rows that begin and end in these states by one of these events."""
    return {
        (state, event): after
        for (state, event), after in table.items()
        if state in states and after in states and event in events
    }


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
        # What was under way when the pull stopped changes nothing.
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
        # Granted with the ask, and no token comes before the end.
        (_R.NEW, _RE.GRANT): _R.GRANTED,
        (_R.GRANTED, _RE.DONE): _R.VERIFYING,
    }
)


def pull_sender_machine() -> Machine[SenderState, SenderEvent]:
    return Machine(PULL_SENDER, SenderState.IDLE)


def pull_receiver_machine() -> Machine[ReceiverState, ReceiverEvent]:
    return Machine(PULL_RECEIVER, ReceiverState.NEW)
