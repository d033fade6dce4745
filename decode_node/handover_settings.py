"""Deadlines of the receiving half of a hand-over, all in seconds."""

from dataclasses import dataclass, field

from tasuki.transfer.rooms.deadlines import PullSenderDeadlines, ReceiverDeadlines


@dataclass(frozen=True)
class HandoverSettings:
    """silence: a prefill node that sends no beat for that long is lost; less than the lease, or
    rooms would be stopped one by one before. connect: how long one attempt to connect may take;
    retry_first, retry_last: the pause between attempts, doubling from one to the other. landing:
    from Done until the last window must have landed. acknowledge: how long one abort may wait for
    its reply. write: how long one message of a room may wait for the prefill node to take it.
    patience: a room that is not fenced by then gives up the connection, so that the lease runs out.
    attempts: prefill nodes that one prompt is given to before it is prefilled here; not seconds.
    deadlines, pull: of rooms and of pulls, by state.
    """

    silence: float = 3.0
    connect: float = 5.0
    retry_first: float = 0.1
    retry_last: float = 2.0
    landing: float = 5.0
    acknowledge: float = 3.0
    write: float = 10.0
    patience: float = 10.0
    attempts: int = 2
    deadlines: ReceiverDeadlines = field(default_factory=ReceiverDeadlines)
    pull: PullSenderDeadlines = field(default_factory=PullSenderDeadlines)
