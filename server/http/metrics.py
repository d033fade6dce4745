"""GET /metrics: the node's counters for Prometheus."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiohttp import web

from tasuki.dashboard.metrics.exposition import CONTENT_TYPE, Exposition
from tasuki.dashboard.metrics.health.front_report import FrontReport
from tasuki.dashboard.metrics.node_report import NodeReport
from tasuki.server.engine_client import EngineClient
from tasuki.transfer.liveness.link_status import (
    HandoverStatusSource,
    PrefillNodeState,
    PrefillNodeStatus,
)


async def node_report(
    engine: EngineClient,
    handover: HandoverStatusSource,
    chat_tokens: Callable[[], Mapping[str, int]],
    about: Mapping[str, str],
) -> NodeReport:
    """The node's counters, now. chat_tokens, about: as in NodeReport."""
    stats = await engine.counters()
    status = handover()
    return NodeReport(
        stats,
        _by_state(status.prefill_nodes),
        status.windows,
        status.sent,
        status.peers,
        chat_tokens(),
        status.prefill_nodes,
        about,
    )


def _by_state(nodes: Sequence[PrefillNodeStatus]) -> dict[str, int]:
    """Counts of every state, zeros included, so that no series ends; empty where there are no
    nodes."""
    counts = Counter(node.state for node in nodes)
    return {state.value: counts[state] for state in PrefillNodeState} if nodes else {}


def metrics_handler(
    reports: Callable[[], Awaitable[tuple[NodeReport | None, FrontReport]]],
    exposition: Exposition,
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """reports: as of Exposition.text(), at each scrape."""

    async def handle(request: web.Request) -> web.Response:
        text = exposition.text(*await reports())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    return handle
