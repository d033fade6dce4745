"""A node's health for GET /metrics, reported even while the engine does not answer.

NodeWatch asks the engine and checks disks. Invariant: a report comes within the sum of two
timeouts.

LatestCounters keeps the engine's counters, so a scrape does not wait for a long step. It owns the
question in progress. Invariants: one question to the engine at a time, for any number of scrapes. A
scrape waits no longer than its given time. No message goes to a dead engine, because the question
then fails at once.

DiskRooms keeps the free space of the file systems of a node's folders. It owns the check in
progress. A remote file system may block a check for ever, so the check has a thread of its own.
Invariants: one check at a time; a caller waits no longer than its given time, then gets the last
result.

NodeFiles names the node's files and folders, by setting: certificates with an end, and folders on
disks with limited space. Immutable, any thread. Everything else belongs to one event loop's thread.
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
from tasuki.dashboard.observed import DiskRoom, FrontReport, NodeReport, NodeState, PictureFiles
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
    """The files and folders of a node, by setting. authorities: PEM files of the authorities
    trusted by this node, besides its server's. folders: the folders the node writes to."""

    authorities: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)

    def certificate_ends(self, tls: ServerTls | None) -> dict[str, float]:
        """Return the expiry of each certificate file in seconds since 1970, by setting. tls: the
        server's files. A chain ends with the first certificate to expire. Authorities end with the
        last, because a file may hold an old one beside its successor. A missing file or one without
        certificates is left out: its user refuses it."""
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
    """Return the paths of the folders written by the engine, if any, by the name of their
    setting."""
    return {} if config.disk_cache is None else {"disk_cache": config.disk_cache}


def _dates(path: str) -> list[float]:
    """Return the end dates of the certificates in a file in ascending order, in seconds since 1970;
    empty if the file cannot be read."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return sorted(not_after_dates(file.read()))
    except (OSError, ValueError, IndexError):
        return []


class DiskRooms:
    def __init__(self, folders: Mapping[str, str]) -> None:
        """Set up the checks of free space. folders: paths, by the name of their setting."""
        self._folders = dict(folders)
        self._seen: dict[str, DiskRoom] = {}
        self._looking: asyncio.Future[dict[str, DiskRoom]] | None = None

    async def within(self, seconds: float) -> dict[str, DiskRoom]:
        """Return the free space of each readable folder by setting. Wait at most `seconds` for a
        new check; without its result, return the previous one, at first empty."""
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

        # Not a thread of a pool, because the process's end waits for a pool's threads.
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
        """Set up the counters' source. ask: returns the engine's current counters; raises
        ServerError if the engine has died."""
        self._ask = ask
        self._clock = clock
        self._asking: asyncio.Task[None] | None = None
        self._last: NodeReport | None = None
        self._asked_at = clock()

    async def within(self, seconds: float) -> NodeReport | None:
        """Return the engine's counters, new ones within `seconds`, or else the last ones. Return
        None if it has not answered yet, or has died."""
        if self._asking is None:
            self._asked_at = self._clock()
            self._asking = asyncio.get_running_loop().create_task(self._answer())
        await asyncio.wait([self._asking], timeout=seconds)
        return self._last

    @property
    def silent_seconds(self) -> float:
        """Return the seconds since the unanswered question to the engine; 0 if there is none. If 0,
        the result of within() is current."""
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
"""Timeout in seconds of a disk check, shorter than the usual minimum timeout of a scrape."""


class NodeWatch:
    def __init__(
        self,
        ask: AskNode,
        standing: AskStanding,
        failures: Counts,
        files: NodeFiles,
        tls: ServerTls | None,
    ) -> None:
        """Set up the watch. ask: returns the engine's current counters. standing: returns the
        front's state. failures: returns the counts of FrontReport.failures. tls: TLS files of the
        server."""
        self._counters = LatestCounters(ask)
        self._standing = standing
        self._failures = failures
        self._disks = DiskRooms(files.folders)
        # A renewed file is served only after a restart.
        self._certificates = files.certificate_ends(tls)

    async def reports(self) -> tuple[NodeReport | None, FrontReport]:
        """Return the engine's report and the front's own. The engine's is its last one if it is
        late. It is None before the first, or if the engine has died."""
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
    pictures: PictureFiles,
) -> NodeReport:
    """Return the node's report. stats: the engine's counters. status: the hand-over's status.
    chat_tokens, about, pictures: fields of NodeReport."""
    return NodeReport(
        stats,
        _by_state(status.prefill_nodes),
        status.windows,
        status.sent,
        status.peers,
        chat_tokens,
        status.prefill_nodes,
        pictures,
        about,
    )


def _by_state(nodes: Sequence[PrefillNodeStatus]) -> dict[str, int]:
    """Return the number of prefill nodes in each state. Include zeros, so no time series ends.
    Return an empty dict if there are no nodes."""
    counts = Counter(node.state for node in nodes)
    return {state.value: counts[state] for state in PrefillNodeState} if nodes else {}


def metrics_handler(watch: NodeWatch, exposition: Exposition) -> Handler:
    """Return the HTTP handler of /metrics scrapes. Each scrape gets the watch's current reports."""

    async def handle(request: web.Request) -> web.StreamResponse:
        text = exposition.text(*await watch.reports())
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})

    return handle
