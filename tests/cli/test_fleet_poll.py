"""Tests of the dashboard's polling of nodes. Slow, huge, lying or vanished nodes cost the dashboard
little. Only nodes receive the key."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tasuki.cli.fleet.config import AddressError, Credentials, PollLimits, check_address
from tasuki.cli.fleet.node_poll import NodePoll
from tasuki.dashboard.fleet.fleet import Fleet
from tests.harness.waiting import HANG_SECONDS

KEY = "a-key-that-no-page-shows"
LIMITS = PollLimits(
    every_seconds=0.05, answer_seconds=HANG_SECONDS, answer_bytes=1 << 20, at_a_time=4
)
# For hosts without an end to their answer. Hosts with one need no such short limit.
IMPATIENT = replace(LIMITS, answer_seconds=1.0)
GOOD = b'tasuki_node_info{node="good",role="decode",model="m",version="1"} 1\n'

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter, str], Awaitable[None]]


def answering(body: bytes, status: str = "200 OK", *headers: str) -> Behaviour:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close"]
        writer.write("\r\n".join((*lines, *headers, "", "")).encode() + body)
        await writer.drain()

    return answer


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
    await reader.read()


async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"tasuki_generated_tokens_total 1\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"tasuki_generated_tokens_total 1\n" * 4096)
        await writer.drain()


async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str) -> None:
    writer.write(b"\x16\x03\x01\0\xff" * 99)


class Host:
    """A server on loopback with the given behaviour. heads: request heads received so far."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.heads: list[str] = []
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Host"]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            await self._behaviour(reader, writer, head)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def rows_of(
    addresses: Sequence[str],
    wanted: Callable[[dict[str, Any]], bool],
    credentials: Credentials,
    limits: PollLimits = LIMITS,
) -> dict[str, dict[str, Any]]:
    """Return the nodes' rows by address, once all rows are `wanted`."""
    fleet = Fleet()
    async with asyncio.timeout(HANG_SECONDS), NodePoll(fleet, credentials, limits) as poll:
        await poll.ask_these(addresses)
        while True:
            rows = {row["address"]: row for row in fleet.nodes("", "name", 0, 100)["rows"]}
            if all(map(wanted, rows.values())):
                return rows
            await asyncio.sleep(0.01)


def told(
    behaviours: Sequence[Behaviour],
    credentials: Credentials | None = None,
    limits: PollLimits = LIMITS,
) -> tuple[list[dict[str, Any]], list[Host]]:
    """Poll hosts with these behaviours until each has a row; return the rows and the hosts."""

    async def ask() -> tuple[list[dict[str, Any]], list[Host]]:
        async with AsyncExitStack() as stack:
            hosts = [await stack.enter_async_context(Host(one).running()) for one in behaviours]
            rows = await rows_of(
                [host.address for host in hosts],
                lambda row: row["answered_at"] is not None or bool(row["trouble"]),
                credentials or Credentials(),
                limits,
            )
            return [rows[host.address] for host in hosts], hosts

    return asyncio.run(ask())


BAD: dict[str, tuple[Behaviour, str]] = {
    "silent": (silent, "no answer within 1 s"),
    "dripping": (dripping, "no answer within 1 s"),
    "endless": (endless, "its answer is over 1 MiB"),
    "huge": (answering(b"tasuki_a 1\n" * 100_000), "its answer is over 1 MiB"),
    "no HTTP": (garbage, "what answers is no HTTP"),
    "HTML": (answering(b"<script>alert(1)</script>"), "its answer holds no metrics of tasuki"),
    "JSON": (answering(b'{"tasuki_node_info": 1}'), "its answer holds no metrics of tasuki"),
    "compressed": (
        answering(gzip.compress(GOOD * 9999), "200 OK", "Content-Encoding: gzip"),
        "its answer holds no metrics of tasuki",
    ),
    "no key": (answering(b"", "401 Unauthorized"), "it wants a key: give --api-key-file"),
    "poor key": (answering(b"", "403 Forbidden"), "our key lacks its scope metrics"),
    "broken": (answering(GOOD, "500 Oh <b>no</b>"), "HTTP status 500"),
    "long header": (
        answering(GOOD, "200 OK", f"X-Long: {'x' * 99_999}"),
        "what answers is no HTTP",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_node_is_dead_for_a_reason_in_our_words(kind: str) -> None:
    behaviour, reason = BAD[kind]
    late = reason == "no answer within 1 s"
    (row,), _ = told([behaviour], limits=IMPATIENT if late else LIMITS)
    assert row["level"] == "dead" and row["silent_since"] is not None
    assert [one["text"] for one in row["trouble"]] == [reason]


def test_a_port_that_nobody_serves_is_dead() -> None:
    async def ask() -> dict[str, dict[str, Any]]:
        async with Host(silent).running() as host:
            address = host.address
        return await rows_of([address], lambda row: bool(row["trouble"]), Credentials())

    (row,) = asyncio.run(ask()).values()
    assert row["trouble"][0]["text"] == "connection refused"


async def test_bad_nodes_keep_nobody_from_the_page() -> None:
    """Poll more bad nodes than are asked at a time."""

    async with AsyncExitStack() as stack:
        bad = [await stack.enter_async_context(Host(silent).running()) for _ in range(9)]
        good = await stack.enter_async_context(Host(answering(GOOD)).running())
        addresses = [host.address for host in (*bad, good)]
        levels = dict.fromkeys(addresses, "dead") | {good.address: "fine"}
        await rows_of(
            addresses,
            lambda row: row["level"] == levels[row["address"]],
            Credentials(),
            IMPATIENT,
        )


def test_a_redirect_is_not_followed_and_takes_no_key_along() -> None:
    async def ask() -> tuple[dict[str, Any], list[str]]:
        async with Host(answering(GOOD)).running() as other:
            moved = answering(b"", "302 Found", f"Location: http://{other.address}/metrics")
            async with Host(moved).running() as host:
                rows = await rows_of(
                    [host.address], lambda row: bool(row["trouble"]), Credentials(KEY)
                )
                return rows[host.address], other.heads

    row, heads = asyncio.run(ask())
    assert row["trouble"][0]["text"] == "it sends us elsewhere, and redirects are not followed"
    assert heads == []


def test_a_node_is_shown_the_key_and_nothing_else() -> None:
    (row,), (host,) = told([answering(GOOD, "200 OK", "Set-Cookie: a=b")], Credentials(KEY))
    assert row["level"] == "fine" and host.heads[0].startswith("GET /metrics HTTP/1.1")
    assert all(f"Authorization: Bearer {KEY}" in head for head in host.heads)
    assert not any("Cookie" in head for head in host.heads)
    assert KEY not in repr(Credentials(KEY)) and KEY not in str(row)


def test_the_key_does_not_leave_this_host_in_plain_text() -> None:
    rows = asyncio.run(
        rows_of(["192.0.2.1:80"], lambda row: bool(row["trouble"]), Credentials(KEY))
    )
    assert "in plain text" in rows["192.0.2.1:80"]["trouble"][0]["text"]


def test_a_node_that_never_answers_is_asked_less_and_less() -> None:
    async def ask() -> tuple[int, int]:
        async with AsyncExitStack() as stack:
            bad = await stack.enter_async_context(Host(answering(b"", "500 No")).running())
            good = await stack.enter_async_context(Host(answering(GOOD)).running())
            async with NodePoll(Fleet(), Credentials(), LIMITS) as poll:
                await poll.ask_these([bad.address, good.address])
                async with asyncio.timeout(HANG_SECONDS):
                    while len(good.heads) < 30:
                        await asyncio.sleep(0.01)
            return len(bad.heads), len(good.heads)

    bad, good = asyncio.run(ask())
    assert bad <= good / 3


def test_who_is_no_member_any_more_is_not_asked() -> None:
    async def ask() -> tuple[int, int]:
        async with Host(answering(GOOD)).running() as host:
            fleet = Fleet()
            async with NodePoll(fleet, Credentials(), LIMITS) as poll:
                await poll.ask_these([host.address])
                async with asyncio.timeout(HANG_SECONDS):
                    while len(host.heads) < 2:
                        await asyncio.sleep(0.01)
                await poll.ask_these([])
                asked = len(host.heads)
                await asyncio.sleep(5 * LIMITS.every_seconds)
                return len(host.heads) - asked, fleet.nodes("", "name", 0, 9)["known"]

    more, known = asyncio.run(ask())
    assert more <= 1 and known == 0


@pytest.mark.parametrize(
    "address",
    [
        *("evil.example/path?:80", "user@evil.example:80", "evil.example#:80", "a b:80", ":80"),
        *(
            "host:0",
            "host:99999",
            "host",
            "[::1",
            "host:80/x",
            "http://host:80",
            "-x:80",
            "\u0435:80",
        ),
    ],
)
def test_what_is_no_address_is_never_fetched(address: str) -> None:
    with pytest.raises(AddressError, match="is not HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "[::1]:80", "node-1.fleet.local:65535"])
def test_addresses_are_as_they_are_written(address: str) -> None:
    assert check_address(address) == address
