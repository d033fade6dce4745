"""GET /metrics: the node's counters for Prometheus."""

from collections import Counter

from aiohttp import web

from ..dashboard.exposition import CONTENT_TYPE, Exposition
from ..dashboard.node_report import NodeReport
from .engine_client import EngineClient
from .handover_status import HandoverStatusSource


class MetricsHandler:
    """Asks the engine for its counters at each scrape."""

    def __init__(
        self, engine: EngineClient, exposition: Exposition, handover: HandoverStatusSource
    ) -> None:
        self._engine = engine
        self._exposition = exposition
        self._handover = handover

    async def handle(self, request: web.Request) -> web.Response:
        stats = await self._engine.stats()
        handover = self._handover()
        states = Counter(node.state.value for node in handover.prefill_nodes)
        report = NodeReport(stats, states, handover.windows, handover.sent)
        return web.Response(
            body=self._exposition.text(report), headers={"Content-Type": CONTENT_TYPE}
        )
