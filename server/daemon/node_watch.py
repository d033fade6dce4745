"""Reports a node's health for GET /metrics, which answers even while the engine does not.

NodeWatch asks the engine and looks at disks. Invariant: a report comes within two patiences.

LatestCounters keeps the engine's counters, so that a scrape does not wait for a long step. It owns
the question in progress. Invariants: one question at a time, for any number of scrapes; a scrape
waits no longer than it says; an engine that has died is asked nothing more.

DiskRooms keeps the free space of the file systems of a node's folders. It owns the look in
progress. A file system of another host may hold a look up for ever, so the look has a thread of its
own. Invariants: one look at a time; a caller waits no longer than it says, and then gets the last
result.

NodeFiles names the files and folders that a node lives on, by setting: certificates with an end,
and folders whose disk may fill up. Immutable, any thread; all else is one event loop's thread.
"""

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from tasuki.dashboard.health import AskStanding
from tasuki.dashboard.metrics.exposition import CONTENT_TYPE, Exposition
from tasuki.dashboard.observed import DiskRoom, FrontReport, NodeReport, NodeState
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import StatsReply
from tasuki.server.errors import ServerError
from tasuki.transfer.control.link_status import (
    HandoverStatus,
    PrefillNodeState,
    PrefillNodeStatus,
)
from tasuki.utils.signatures import Clock, Counts
from tasuki.utils.tls import ServerTls, not_after_dates

from .node_recorder import AskNode


@dataclass(frozen=True)
class NodeFiles:
    """authorities: PEM files of those whom this node trusts, beside its server's. folders: that it
    writes to."""

    authorities: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)

    def certificate_ends(self, tls: ServerTls | None) -> dict[str, float]:
        """Seconds since 1970, by setting, of the files as they are now. tls: the server's. A chain
        ends with the first of its certificates; authorities with the last, since a file may hold
        an old one beside its successor. A file that is not there or holds none is left out: it
        is refused where it is used."""
        found = {}
        authorities = dict(self.authorities)
        if tls is not None:
            found["tls_cert"] = _dates(tls.certificate)[:1]
            if tls.client_ca:
                authorities["tls_client_ca"] = tls.client_ca
        for setting, path in authorities.items():
            found[setting] = _dates(path)[-1:]
        return {setting: dates[0] for setting, dates in found.items() if dates}


def folders_of(config: EngineConfig) -> dict[str, str]:
    """Those that the engine writes to."""
    return {} if config.disk_cache is None else {"disk_cache": config.disk_cache}


def _dates(path: str) -> list[float]:
    """In order of time."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return sorted(not_after_dates(file.read()))
    except (OSError, ValueError, IndexError):
        return []


class DiskRooms:
    def __init__(self, folders: Mapping[str, str]) -> None:
        """folders: by the setting that names them."""
        self._folders = dict(folders)
        self._seen: dict[str, DiskRoom] = {}
        self._looking: asyncio.Future[dict[str, DiskRoom]] | None = None

    async def within(self, seconds: float) -> dict[str, DiskRoom]:
        """By setting; without those that could not be looked at."""
        if not self._folders:
            return {}
        looking = self._looking = self._looking or self._look()
        await asyncio.wait([looking], timeout=seconds)
        if looking.done():
            self._looking = None
            if not looking.cancelled():
                self._seen = looking.result()
        return self._seen

    def _look(self) -> "asyncio.Future[dict[str, DiskRoom]]":
        loop = asyncio.get_running_loop()
        seen: asyncio.Future[dict[str, DiskRoom]] = loop.create_future()

        def settle(found: dict[str, DiskRoom]) -> None:
            if not seen.done():
                seen.set_result(found)

        def look() -> None:
            found = _rooms(self._folders)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, found)

        # No pool's: its threads are waited for at the process's end.
        threading.Thread(target=look, name="tasuki-disk-look", daemon=True).start()
        return seen


def _rooms(folders: Mapping[str, str]) -> dict[str, DiskRoom]:
    found = {}
    for setting, folder in folders.items():
        try:
            stat = os.statvfs(folder)
        except OSError:
            continue
        free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
        found[setting] = DiskRoom(free, total)
    return found


class LatestCounters:
    def __init__(
        self,
        ask: AskNode,
        clock: Clock = time.monotonic,
    ) -> None:
        """ask: the engine, now; raises ServerError where it has died."""
        self._ask = ask
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        self._last: NodeReport | None = None
        self._asked_at = clock()

    async def within(self, seconds: float) -> NodeReport | None:
        """What the engine answers within so long, or answered last; None where it has answered
        nothing yet, or has died."""
        if self._asking is None:
            self._asked_at = self._clock()
            self._asking = asyncio.get_running_loop().create_task(self._answer())
        await asyncio.wait([self._asking], timeout=seconds)
        return self._last

    @property
    def silent_seconds(self) -> float:
        """For how long it has owed an answer; 0 where it owes none, so that what within() gave is
        from now."""
        return 0.0 if self._asking is None else self._clock() - self._asked_at

    async def _answer(self) -> None:
        try:
            self._last = await self._ask()
        except ServerError:
            self._last = None
        finally:
            self._asking = None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()


_ENGINE_SECONDS = 2.0
_DISK_SECONDS = 0.5
"""Below the least time that scrapes are usually given."""


class NodeWatch:
    def __init__(
        self,
        ask: AskNode,
        standing: AskStanding,
        failures: Counts,
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


def node_report(
    stats: StatsReply,
    status: HandoverStatus,
    chat_tokens: Mapping[str, int],
    about: Mapping[str, str],
) -> NodeReport:
    """The node's counters. chat_tokens, about: as in NodeReport."""
    return NodeReport(
        stats,
        _by_state(status.prefill_nodes),
        status.windows,
        status.sent,
        status.peers,
        chat_tokens,
        status.prefill_nodes,
        about,
    )


def _by_state(nodes: Sequence[PrefillNodeStatus]) -> dict[str, int]:
    """Counts of every state, zeros included, so that no series ends; empty where there are no
    nodes."""
    counts = Counter(node.state for node in nodes)
    return {state.value: counts[state] for state in PrefillNodeState} if nodes else {}


def metrics_handler(watch: NodeWatch, exposition: Exposition) -> Handler:
    """Answers each scrape with what the watch reports then."""

    async def handle(request: web.Request) -> web.StreamResponse:
        text = exposition.text(*await watch.reports())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    return handle
