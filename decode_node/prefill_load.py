"""How busy a connected prefill node is, by what it reports and what was sent to it since.

Thread rule: the event loop. Invariants: what a node reports is finite and bounded before anything
is computed with it; a report counts from a moment before which all that was sent had reached the
node, so that nothing sent is left out of both.
"""

import math

from tasuki.proto import handover_pb2 as pb
from tasuki.routing.node_load import NodeLoad, PrefillSeconds
from tasuki.transfer import peer_values


class PrefillNodeLoad:
    """Times are this node's monotonic seconds."""

    def __init__(self) -> None:
        self.seconds: PrefillSeconds | None = None
        """What a prefill takes there; None until it was reported."""
        self.pull: tuple[float, float] | None = None
        """Seconds of any pull and of each of its tokens; None where that is not known."""
        self.reported_wait: float | None = None
        """Seconds, as of the last report; None until there is one. From any thread."""
        self._load = NodeLoad()
        self._others, self._others_at = 0.0, 0.0
        self._as_of = -math.inf

    def report(self, load: pb.Load, sent_by: float, now: float) -> None:
        """sent_by: what was sent until then the node had when it reported. Raises PeerInvalid, and
        keeps what it had."""
        wait = peer_values.seconds(load.wait_seconds, "load.wait_seconds")
        seconds = PrefillSeconds(
            peer_values.seconds(load.fixed_seconds, "load.fixed_seconds"),
            peer_values.seconds(load.token_seconds, "load.token_seconds"),
            peer_values.seconds(load.context_seconds, "load.context_seconds"),
        )
        pull = None
        if load.HasField("pull_fixed_seconds") and load.HasField("pull_token_seconds"):
            pull = (
                peer_values.seconds(load.pull_fixed_seconds, "load.pull_fixed_seconds"),
                peer_values.seconds(load.pull_token_seconds, "load.pull_token_seconds"),
            )
        stored = peer_values.seconds(load.stored_seconds, "load.stored_seconds")
        others = peer_values.seconds(load.others_wait_seconds, "load.others_wait_seconds")
        self.seconds, self.pull, self._others = seconds, pull, others
        self._others_at = sent_by
        self._report(wait, sent_by, now, stored)

    def answered(self, wait: float, sent_at: float, now: float) -> None:
        """A room that was sent at that time found so many seconds of prefill before it."""
        self._report(wait, math.nextafter(sent_at, -math.inf), now)

    def send(self, work: float, now: float) -> None:
        """A prompt of so many seconds."""
        self._load.send(work, now)

    def wait(self, now: float) -> float:
        """Seconds until a prompt that is sent now would begin."""
        return self._load.wait(now)

    def others_wait(self, now: float) -> float:
        """Of wait() what at least is other decode nodes', as reported last."""
        return max(0.0, self._others - (now - self._others_at))

    def stored(self, now: float) -> float:
        """As NodeLoad."""
        return self._load.stored(now)

    def _report(self, wait: float, sent_by: float, now: float, stored: float | None = None) -> None:
        if sent_by > self._as_of:
            self._as_of, self.reported_wait = sent_by, wait
            # It has so much left now, not then.
            self._load.report(wait + now - sent_by, sent_by, stored)
