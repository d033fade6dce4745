"""GET /metrics: the node's counters for Prometheus."""

from collections import Counter
from collections.abc import Sequence

from aiohttp import web
from tasuki.dashboard.metrics.exposition import CONTENT_TYPE, Exposition
from tasuki.dashboard.metrics.node_report import NodeReport
from tasuki.server.engine_client import EngineClient
from tasuki.transfer.liveness.link_status import (
    HandoverStatusSource,
    PrefillNodeState,
    PrefillNodeStatus,
)


async def node_report(engine: EngineClient, handover: HandoverStatusSource) -> NodeReport:
    """What the node counts, now."""
    stats = await engine.counters()
    status = handover()
    return NodeReport(
        stats, _by_state(status.prefill_nodes), status.windows, status.sent, status.peers
    )


def _by_state(nodes: Sequence[PrefillNodeStatus]) -> dict[str, int]:
    """Every state, so that a series does not end where its number becomes 0; none where there are
    no nodes."""
    counts = Counter(node.state for node in nodes)
    return {state.value: counts[state] for state in PrefillNodeState} if nodes else {}


class MetricsHandler:
    """Asks the engine for its counters at each scrape."""

    def __init__(
        self, engine: EngineClient, exposition: Exposition, handover: HandoverStatusSource
    ) -> None:
        self._engine = engine
        self._exposition = exposition
        self._handover = handover

    async def handle(self, request: web.Request) -> web.Response:
        report = await node_report(self._engine, self._handover)
        return web.Response(
            body=self._exposition.text(report), headers={"Content-Type": CONTENT_TYPE}
        )
