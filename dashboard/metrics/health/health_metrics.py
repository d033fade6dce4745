"""A node's state, failed calls, certificates and disks as Prometheus families. Pure functions."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from tasuki.dashboard.metrics.families import counter, gauge

from .front_report import FrontReport, NodeState


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
