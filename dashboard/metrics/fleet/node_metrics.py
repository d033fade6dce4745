"""Which node this is and what it is linked to, as Prometheus families. Pure functions."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from tasuki.dashboard.metrics.families import gauge
from tasuki.dashboard.metrics.node_report import NodeReport

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
