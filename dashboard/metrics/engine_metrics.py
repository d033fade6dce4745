"""The engine's steps and a prefill node's sending as Prometheus families. Pure functions."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from .families import counter, histogram
from .node_report import NodeReport


def engine_families(report: NodeReport) -> Iterator[Metric]:
    steps = report.stats.steps
    if steps is not None:
        yield histogram("engine_step", "From one forward's end to the next one's.", steps.steps)
        yield histogram(
            "engine_idle", "The device had nothing to run between two forwards.", steps.idle
        )
        if steps.drafts:
            yield counter(
                "draft_steps",
                "Steps of answers of which some may be drafted, by the most drafts of one.",
                "drafts",
                steps.drafts,
            )
    if report.stats.early:
        yield counter(
            "early_steps",
            "Decode steps behind the layer barrier, by outcome.",
            "outcome",
            report.stats.early,
        )
    sent = report.sent
    if sent is not None:
        yield counter("handover_sent_rooms", "Rooms sent, by outcome.", "outcome", sent.rooms)
        yield counter("handover_sent_windows", "Windows of rooms sent whole.", sent.windows)
        yield counter("handover_sent_bytes", "Bytes of rooms sent whole.", sent.bytes)
        seconds = {"hidden": sent.hidden_seconds, "exposed": sent.exposed_seconds}
        yield counter(
            "handover_sent_seconds",
            "Sending beside the forward (hidden) and after its end (exposed).",
            "when",
            seconds,
        )
