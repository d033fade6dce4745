"""The engine's messages that metrics, history and traces observe. Of tokens they see how many."""

from tasuki.engine import messages as m

ObservedMessage = (
    m.Submit
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
    | m.StateLeft
    | m.StateFetched
)
