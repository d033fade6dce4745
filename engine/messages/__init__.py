"""What the engine loop and the world around it say to each other: plain, immutable messages.

Nothing here holds a tensor, a lock, a channel or an object of C++: either side may be its own
process, and a pipe carries the messages (tests/engine/test_engine_process.py). `Inbox` messages go
to the engine, `Outbox` messages come from it. A request is named by request_id at a front and by
room (a 63-bit id) in a hand-over; the decode engine knows both, the prefill engine only rooms.
"""

from .cache import (
    CacheQuery,
    CloseCursor,
    CountersQuery,
    CursorOpened,
    EndWatch,
    EventsReply,
    Evicted,
    FlushCache,
    FlushReply,
    ForkCursor,
    OpenCursor,
    ReadEvents,
    StatsQuery,
    StatsReply,
    TreeQuery,
    TreeReply,
    WatchCache,
    WatchOpened,
)
from .evictions import (
    CAUSES,
    EVICTION_KINDS,
    Eviction,
    LostState,
)
from .handover import (
    EarlyStepEnded,
    Grant,
    GrantWanted,
    HandoverCancelled,
    HandoverDeclined,
    HandoverGranted,
    HandoverLost,
    HandoverWanted,
    PeersChanged,
    PrefillAccepted,
    PrefillEnd,
    PrefillQueued,
    PrefillRefused,
    PrefillReserve,
    PrefillStart,
    PrefillToken,
    RemoteDone,
    RemoteReady,
    RoomEnded,
    Ticket,
    WriterFenced,
)
from .pull import (
    PullAsked,
    PullCommitted,
    PullEnd,
    PullFenced,
    PullGrant,
    PullLost,
    PullPinned,
    PullRefused,
    PullSource,
    PullWanted,
)
from .reports import (
    ESTIMATES,
    Choice,
    HitBreakdown,
    PullReport,
    RouteReport,
    StepReport,
    TimeSpread,
    TransferReport,
    Usage,
)
from .request_phase import KEPT_MARKS, LifeMark, RequestPhase, Stage, marked
from .requests import (
    Abort,
    Drain,
    Drained,
    Finished,
    Rejected,
    Submit,
    TokenOut,
    ToldRoom,
    Undrain,
)
from .types import (
    ErrorKind,
    FinishReason,
    LossCause,
    NodeName,
    RequestError,
    RequestId,
    RoomId,
    Tokens,
)

FrontInbox = Submit | Abort | CacheQuery | Drain | Undrain
"""From a front, to an engine of any role."""

PrefillInbox = PrefillReserve | PrefillStart | PrefillEnd | PullCommitted | PullLost | PullFenced
"""From the control plane of a prefill node."""

DecodeInbox = (
    PeersChanged
    | GrantWanted
    | RemoteReady
    | RemoteDone
    | EarlyStepEnded
    | HandoverLost
    | WriterFenced
    | PullAsked
    | PullEnd
)
"""From the control plane of a decode node."""

FrontOutbox = (
    TokenOut
    | Finished
    | Rejected
    | CursorOpened
    | StatsReply
    | FlushReply
    | WatchOpened
    | EventsReply
    | TreeReply
    | Drained
    | Evicted
)
PrefillOutbox = (
    RoomEnded | PrefillQueued | PrefillAccepted | PrefillRefused | PrefillToken | PullWanted
)
DecodeOutbox = (
    HandoverWanted
    | HandoverGranted
    | HandoverDeclined
    | HandoverCancelled
    | PullPinned
    | PullRefused
)
Inbox = FrontInbox | PrefillInbox | DecodeInbox
Outbox = FrontOutbox | PrefillOutbox | DecodeOutbox
