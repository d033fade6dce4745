"""A node's health, as its front sees it: for /metrics, which answers whatever the engine does.

Owns what asks the engine and looks at disks. One event loop's thread. Invariant: a report comes
within two patiences.
"""

from collections.abc import Awaitable, Callable, Mapping

from tasuki.dashboard.health import Standing
from tasuki.dashboard.metrics.health.front_report import FrontReport, NodeState
from tasuki.dashboard.metrics.node_report import NodeReport
from tasuki.utils.tls import ServerTls

from .disk_rooms import DiskRooms
from .latest_counters import LatestCounters
from .node_files import NodeFiles

_ENGINE_SECONDS = 2.0
_DISK_SECONDS = 0.5
"""Below the least time that scrapes are usually given."""


class NodeWatch:
    def __init__(
        self,
        ask: Callable[[], Awaitable[NodeReport]],
        standing: Callable[[], Standing],
        failures: Callable[[], Mapping[str, int]],
        files: NodeFiles,
        tls: ServerTls | None,
    ) -> None:
        """ask: as of LatestCounters. standing: the front's. failures: as of FrontReport. tls: the
        server's."""
        self._counters = LatestCounters(ask)
        self._standing = standing
        self._failures = failures
        self._disks = DiskRooms(files.folders)
        # A renewed file is served only after a restart.
        self._certificates = files.certificate_ends(tls)

    async def reports(self) -> tuple[NodeReport | None, FrontReport]:
        """The engine's report, None where it gives none, and what is known without it."""
        report = await self._counters.within(_ENGINE_SECONDS)
        disks = await self._disks.within(_DISK_SECONDS)
        if self._standing().lost is not None:
            report = None
        front = FrontReport(
            self._state(report),
            self._counters.silent_seconds,
            self._failures(),
            self._certificates,
            disks,
        )
        return report, front

    def _state(self, report: NodeReport | None) -> NodeState:
        standing = self._standing()
        if standing.lost is not None:
            return NodeState.LOST
        if standing.draining:
            return NodeState.DRAINING
        return NodeState.STARTING if report is None else NodeState.READY

    def close(self) -> None:
        self._counters.close()
