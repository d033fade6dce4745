"""A poller of the metrics of each node in a fleet.

Owns one HTTP session, and one task for each node. Used on one event loop's thread. Invariants: only
members are polled, and redirects are not followed. An answer costs bounded time and memory, so one
node cannot delay the others. A node without answers is polled less often.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

import aiohttp

from tasuki.dashboard.fleet.samples import WANTED, LabelTexts, Samples, read_samples

from .config import Credentials, PollLimits, is_here

_PATH = "/metrics"
_CHUNK = 1 << 16
_CANCEL_SECONDS = 1.0
_SLOWEST_SECONDS = 60.0
"""Longest interval in seconds between polls of a node without answers."""

_REFUSALS = {
    401: "it wants a key: give --api-key-file",
    403: "our key lacks its scope metrics",
    404: "it serves no /metrics",
    421: "it is not called by this name: see its --allowed-hosts",
}


class NodeRefused(Exception):
    """A node's answer is unusable. The message is the reason, in our own words."""


class Polled(Protocol):
    """The receiver of the nodes' answers from a poller. now: seconds since 1970. clock: monotonic
    seconds."""

    def set_members(self, addresses: Iterable[str]) -> None: ...

    def answered(self, address: str, now: float, clock: float, samples: Samples) -> None: ...

    def failed(self, address: str, now: float, reason: str) -> None: ...


class NodePoll:
    """A poller of nodes' metrics. Use it with `async with`. REQUIRES: a running event loop."""

    def __init__(
        self,
        fleet: Polled,
        credentials: Credentials,
        limits: PollLimits,
        wanted: frozenset[str] = WANTED,
    ) -> None:
        """Set up a poller. fleet: receiver of the answers. wanted: names of the samples to keep."""
        self._fleet = fleet
        self._wanted = wanted
        self._credentials = credentials
        self._limits = limits
        self._turns = asyncio.Semaphore(limits.at_a_time)
        self._label_texts = LabelTexts()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "NodePoll":
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limits.at_a_time),
            cookie_jar=aiohttp.DummyCookieJar(),
            # _ask has the timeout: if two timeouts end at once, one may swallow a cancellation.
            timeout=aiohttp.ClientTimeout(total=None),
            # A short answer could expand to any size.
            auto_decompress=False,
            headers={"Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end(list(self._asking))
        await self._session.close()

    async def follow(self, members: AsyncIterator[tuple[str, ...]]) -> None:
        """Poll the nodes in the latest item of `members`. Returns when `members` ends."""
        async for addresses in members:
            await self.ask_these(addresses)

    async def ask_these(self, addresses: Iterable[str]) -> None:
        """Poll the nodes at these addresses from now on, and no others."""
        wanted = list(dict.fromkeys(addresses))
        self._fleet.set_members(wanted)
        await self._end([address for address in self._asking if address not in set(wanted)])
        fresh = [address for address in wanted if address not in self._asking]
        for number, address in enumerate(fresh):
            # Spread the polls: otherwise all nodes would be polled at once, every time.
            later = self._limits.every_seconds * number / len(fresh) if number else 0.0
            self._asking[address] = asyncio.create_task(self._keep_asking(address, later))

    async def _end(self, addresses: list[str]) -> None:
        ending = {self._asking.pop(address) for address in addresses}
        while ending:
            # Cancel again if an awaited call has swallowed the cancellation.
            for task in ending:
                task.cancel()
            _, ending = await asyncio.wait(ending, timeout=_CANCEL_SECONDS)

    async def _keep_asking(self, address: str, later: float) -> None:
        await asyncio.sleep(later)
        every = pause = self._limits.every_seconds
        while True:
            try:
                async with self._turns:
                    samples = await self._ask(address)
            except NodeRefused as error:
                self._fleet.failed(address, time.time(), str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, max(every, _SLOWEST_SECONDS))
                continue
            self._fleet.answered(address, time.time(), time.monotonic(), samples)
            pause = every
            await asyncio.sleep(every)

    async def _ask(self, address: str) -> Samples:
        """Poll one node and return its samples. Raises NodeRefused."""
        seconds = self._limits.answer_seconds
        try:
            async with asyncio.timeout(seconds):
                text = await self._fetch(address)
            return read_samples(text, self._wanted, self._label_texts)
        except TimeoutError as error:
            raise NodeRefused(f"no answer within {seconds:g} s") from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise NodeRefused("its certificate is not signed by --ca") from error
        except aiohttp.ClientSSLError as error:
            raise NodeRefused("TLS fails: does it serve plain text?") from error
        except aiohttp.ClientConnectorError as error:
            raise NodeRefused(_unreachable(error.os_error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise NodeRefused("what answers is no HTTP") from error
        except ValueError as error:
            raise NodeRefused("its answer holds no metrics of tasuki") from error

    async def _fetch(self, address: str) -> str:
        credentials = self._credentials
        headers = {}
        if credentials.key:
            if credentials.tls is None and not (credentials.insecure or is_here(address)):
                raise NodeRefused("not asked: our key would go there in plain text, see --ca")
            headers["Authorization"] = f"Bearer {credentials.key}"
        scheme = "http" if credentials.tls is None else "https"
        async with self._session.get(
            f"{scheme}://{address}{_PATH}",
            headers=headers,
            allow_redirects=False,
            ssl=credentials.tls or True,
        ) as reply:
            if 300 <= reply.status < 400:
                raise NodeRefused("it sends us elsewhere, and redirects are not followed")
            if reply.status != 200:
                raise NodeRefused(_REFUSALS.get(reply.status, f"HTTP status {reply.status}"))
            return await self._read(reply)

    async def _read(self, reply: aiohttp.ClientResponse) -> str:
        most = self._limits.answer_bytes
        body = bytearray()
        async for part in reply.content.iter_chunked(_CHUNK):
            body += part
            if len(body) > most:
                reply.close()
                raise NodeRefused(f"its answer is over {most >> 20} MiB")
        return body.decode("utf-8", errors="replace")


def _unreachable(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    return os.strerror(error.errno).lower() if error.errno else "cannot be reached"
