"""The engine's messages that metrics, history and traces observe."""

from tasuki.engine import messages as m

ObservedMessage = (
    m.Submit
    | m.TokenOut
    | m.Finished
    | m.Rejected
    | m.Evicted
    | m.RoomEnded
    | m.HandoverFailed
    | m.HandoverCancelled
    | m.WriterFenced
    | m.PeersChanged
    | m.PullCommitted
    | m.PullLost
    | m.PullFenced
)
