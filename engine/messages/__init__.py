"""The messages between the engine loop and its surroundings: plain and immutable.

No message holds a tensor, a lock, a channel or an object of C++. Media of pictures may be parts of
a memfd, which links pass on (media.py). Engine and surroundings may be
separate processes: a pipe carries the messages (tests/engine/test_engine_process.py). `Inbox`
messages go to the engine, `Outbox` messages come from it. An API server names a request by
request_id. A hand-over names it by its transfer id (on the wire `room`), a 63-bit number. The
decode engine knows both names, the prefill engine only transfer ids.
"""

from collections.abc import Callable

from .cache import *
from .drain_targets import *
from .fetch import *
from .handover import *
from .media import *
from .pictures import *
from .pull import *
from .reports import *
from .requests import *
from .types import *
from .updates import *

FrontInbox = (
    Submit
    | Abort
    | CacheQuery
    | Drain
    | Undrain
    | PauseAnswers
    | ResumeAnswers
    | UpdateWeights
    | LeaveToDrainTargets
    | EndLeaving
)
"""Messages from an API server, to an engine of any role."""

PrefillInbox = (
    PrefillReserve
    | FetchReserve
    | PrefillStart
    | PrefillEnd
    | PicturesCame
    | PullCommitted
    | PullLost
    | PullFenced
    | ReadUsable
    | LeftWanted
    | LeftTakenOver
    | LinksClosed
)
"""Messages from the control plane of a prefill node."""

DecodeInbox = (
    PeersChanged
    | PrefillBusy
    | GrantWanted
    | RemoteReady
    | RemoteDone
    | EarlyStepEnded
    | HandoverFailed
    | AlreadyHeld
    | FetchAdvised
    | FetchLost
    | WriterFenced
    | PullAsked
    | PullEnd
    | PassOn
    | LinksClosed
)
"""Messages from the control plane of a decode node."""

FrontOutbox = (
    TokenOut
    | TokensOut
    | PromptScored
    | Finished
    | Rejected
    | CursorOpened
    | StatsReply
    | LoadReply
    | FlushReply
    | WatchOpened
    | EventsReply
    | TreeReply
    | Drained
    | AnswersPaused
    | WeightsUpdated
    | Evicted
    | StateLeft
    | LeftToDrainTargets
    | StateFetched
)
PrefillOutbox = (
    TransferEnded
    | PrefillQueue
    | PrefillQueued
    | PrefillAccepted
    | PrefillRefused
    | FetchRefused
    | StateHeld
    | PrefillToken
    | PrefillLoad
    | PullWanted
    | PicturesWanted
    | UsableRead
    | LeavingBegun
    | LeftState
    | WeightsChanged
)
DecodeOutbox = (
    HandoverWanted
    | FetchWanted
    | HandoverGranted
    | HandoverDeclined
    | HandoverCancelled
    | PullPinned
    | PullRefused
    | StatePassedOn
    | WeightsChanged
)
Inbox = FrontInbox | PrefillInbox | DecodeInbox
Outbox = FrontOutbox | PrefillOutbox | DecodeOutbox

Post = Callable[[Inbox], None]
"""Send a message to the engine. Returns without waiting."""

Emit = Callable[[Outbox], None]
"""Accept a message of the engine, on the engine's thread. Returns without waiting."""
