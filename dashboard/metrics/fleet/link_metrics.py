"""What hand-overs brought to a decode node, by the name of the prefill node that sent it.

Borrows its instruments. One thread.
"""

from tasuki.dashboard.metrics.instruments import Instruments
from tasuki.engine.messages import TransferReport


class LinkMetrics:
    def __init__(self, made: Instruments) -> None:
        self._handovers = made.counter(
            "handover_link_handovers", "Hand-overs that came here, by prefill node.", "peer"
        )
        self._bytes = made.counter(
            "handover_link_bytes", "Bytes that hand-overs brought here, by prefill node.", "peer"
        )
        self._exposed = made.counter(
            "handover_link_exposed_seconds",
            "Transfer time after the forward's end, by prefill node.",
            "peer",
        )

    def observe(self, peer: str, transfer: TransferReport) -> None:
        """peer: the prefill node's name."""
        self._handovers.labels(peer).inc()
        self._bytes.labels(peer).inc(transfer.bytes)
        self._exposed.labels(peer).inc(transfer.exposed_seconds)
