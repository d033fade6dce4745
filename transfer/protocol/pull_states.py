"""The return path's life on each side: a pull, the hand-over with roles swapped.

Here the node that answered is the sender and the node that is about to prefill the receiver. There
is no queue and no token, so the tables are shorter than handover_states.py's: the receiver grants
at once, the sender pins what it offered or refuses, and every layer is finished before the first
window leaves. spin/pull.pml carries the same rows and is checked exhaustively; a test compares the
two. Invariant: as in handover_states.py. What is lost here costs time only: the receiver computes
it itself.
"""

from enum import Enum
from types import MappingProxyType

from .handover_states import Machine


class PullSenderState(Enum):
    IDLE = "not heard of"
    PINNING = "asked for; the engine is to pin what was offered"
    STREAMING = "pinned: windows leave"
    DRAINING = "stopped: posted transfers are awaited"
    DONE = "final status delivered: every window is flushed"
    REFUSED = "refused before anything was posted"
    ENDED = "over without a result, and drained"


class PullSenderEvent(Enum):
    ASK = "the receiver granted pages and a slot"
    PINNED = "the engine pinned what is asked for"
    REFUSE = "it is here no more, or the ask is wrong"
    FLUSHED = "transfer complete"
    STOP = "stopped, room over, receiver lost, lease lost or transport failed"
    DRAINED = "nothing posted is in flight any more"


class PullReceiverState(Enum):
    NEW = "not asked yet"
    GRANTED = "windows may land"
    VERIFYING = "final status is here; digests are compared"
    COMMITTED = "verified: pages and state belong to the tree"
    QUARANTINED = "lost: no id is used before the fence"
    ENDED = "over, nothing is held"


class PullReceiverEvent(Enum):
    GRANT = "pages and a slot were granted with the ask"
    DONE = "final status"
    VERIFIED = "every window landed and every digest matches"
    LOSE = "refused, room over, failed, mismatched, broken or too late"
    FENCED = "the writer can write no more"


_S, _SE = PullSenderState, PullSenderEvent
_R, _RE = PullReceiverState, PullReceiverEvent

PULL_SENDER = MappingProxyType(
    {
        (_S.IDLE, _SE.ASK): _S.PINNING,
        (_S.PINNING, _SE.PINNED): _S.STREAMING,
        (_S.PINNING, _SE.REFUSE): _S.REFUSED,
        (_S.PINNING, _SE.STOP): _S.DRAINING,
        (_S.STREAMING, _SE.FLUSHED): _S.DONE,
        (_S.STREAMING, _SE.STOP): _S.DRAINING,
        (_S.DRAINING, _SE.DRAINED): _S.ENDED,
        # What was under way when the pull stopped changes nothing.
        (_S.DRAINING, _SE.PINNED): _S.DRAINING,
        (_S.DRAINING, _SE.REFUSE): _S.DRAINING,
        (_S.DRAINING, _SE.FLUSHED): _S.DRAINING,
        (_S.DRAINING, _SE.STOP): _S.DRAINING,
        (_S.DONE, _SE.STOP): _S.DONE,
        (_S.REFUSED, _SE.STOP): _S.REFUSED,
        (_S.ENDED, _SE.STOP): _S.ENDED,
        (_S.ENDED, _SE.PINNED): _S.ENDED,
        (_S.ENDED, _SE.REFUSE): _S.ENDED,
    }
)

PULL_RECEIVER = MappingProxyType(
    {
        (_R.NEW, _RE.GRANT): _R.GRANTED,
        (_R.GRANTED, _RE.DONE): _R.VERIFYING,
        (_R.GRANTED, _RE.LOSE): _R.QUARANTINED,
        (_R.VERIFYING, _RE.VERIFIED): _R.COMMITTED,
        (_R.VERIFYING, _RE.LOSE): _R.QUARANTINED,
        (_R.QUARANTINED, _RE.FENCED): _R.ENDED,
        # What was under way when the pull was lost changes nothing.
        (_R.QUARANTINED, _RE.DONE): _R.QUARANTINED,
        (_R.QUARANTINED, _RE.LOSE): _R.QUARANTINED,
    }
)


def pull_sender_machine() -> Machine[PullSenderState, PullSenderEvent]:
    return Machine(PULL_SENDER, PullSenderState.IDLE)


def pull_receiver_machine() -> Machine[PullReceiverState, PullReceiverEvent]:
    return Machine(PULL_RECEIVER, PullReceiverState.NEW)
