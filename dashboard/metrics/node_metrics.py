"""Metrics of a node beside its cache, as Prometheus families. Pure functions.

node_families(): the node's name and its links. health_families(): its state, failed calls,
certificates and disks. engine_families(): the engine's steps, and the sending of a prefill node.
"""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from tasuki.dashboard.observed import FrontReport, NodeReport, NodeState

from .families import counter, gauge, histogram

_ABOUT = ("node", "role", "model", "version")
_STORED = ("weights", "kv", "states", "draft_layers")


def node_families(report: NodeReport) -> Iterator[Metric]:
    about = report.about
    info = GaugeMetricFamily(
        "tasuki_node_info", "1; its labels say which node this is.", labels=_ABOUT
    )
    if about:
        info.add_metric([about.get(name, "") for name in _ABOUT], 1)
    yield info
    stored = GaugeMetricFamily(
        "tasuki_stored_info",
        "1; its labels say how weights, keys and values, and states are stored, and for how many "
        "draft layers.",
        labels=_STORED,
    )
    if report.stats.stored:
        stored.add_metric([report.stats.stored.get(name, "") for name in _STORED], 1)
    yield stored
    if "started_at" in about:
        yield gauge(
            "node_start_time_seconds",
            "When the node started, since 1970.",
            float(about["started_at"]),
        )
    links = GaugeMetricFamily(
        "tasuki_handover_link_state",
        "1 for each prefill node, by its name, its address and the link's state.",
        labels=("peer", "address", "state"),
    )
    for link in report.links:
        links.add_metric([link.name or link.address, link.address, link.state.value], 1)
    yield links


def health_families(front: FrontReport) -> Iterator[Metric]:
    states = {state.value: int(state is front.state) for state in NodeState}
    yield gauge("node_state", "1 for the state that the node is in.", "state", states)
    yield gauge(
        "engine_silent_seconds",
        "For how long the engine has owed its counters; 0 where those shown here are from now.",
        front.silent_seconds,
    )
    yield counter(
        "calls_failed",
        "Clients' calls that an error refused or ended, by its kind, over HTTP and gRPC.",
        "kind",
        front.failures,
    )
    yield gauge(
        "certificate_not_after_seconds",
        "Until when certificates in use are valid, since 1970, by the setting that names them.",
        "setting",
        front.certificates,
    )
    disks = GaugeMetricFamily(
        "tasuki_disk_bytes",
        "Of the file system of a folder, by the setting that names it: free, and all.",
        labels=("setting", "what"),
    )
    for setting, room in sorted(front.disks.items()):
        disks.add_metric((setting, "free"), room.free)
        disks.add_metric((setting, "total"), room.total)
    yield disks


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
