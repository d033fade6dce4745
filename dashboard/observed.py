"""The engine's messages that metrics, history and traces observe."""

from tasuki.engine.messages import (
    Evicted,
    Finished,
    HandoverCancelled,
    HandoverFailed,
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
    | HandoverFailed
    | HandoverCancelled
    | WriterFenced
    | PeersChanged
    | PullCommitted
    | PullLost
    | PullFenced
)
