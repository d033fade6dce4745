"""What a dashboard hears: the messages between an engine and its world that say how it went."""

from tasuki.engine.messages import (
    Evicted,
    Finished,
    HandoverCancelled,
    HandoverLost,
    PeersChanged,
    PullCommitted,
    PullFenced,
    PullLost,
    Rejected,
    RoomEnded,
    Submit,
    TokenOut,
    WriterFenced,
)

ObservedMessage = (
    Submit
    | TokenOut
    | Finished
    | Rejected
    | Evicted
    | RoomEnded
    | HandoverLost
    | HandoverCancelled
    | WriterFenced
    | PeersChanged
    | PullCommitted
    | PullLost
    | PullFenced
)
