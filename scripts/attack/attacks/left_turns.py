"""Attack with session turns cancelled at once, on a node with front workers and a cost-free model.

Most turns are cancelled within milliseconds. Afterwards the node may hold nothing of them. Each
session takes a turn at once under the id of a cancelled turn. HTTP ids are free, the engine is at
rest, and SIGTERM ends the node within a second.
"""

import asyncio
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from scripts.attack.attack import Attempt
from scripts.common.tally import Tally
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.bench.load.node_process import NodeProcess, node_process
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tests.harness.processes import ended

_CONNECTIONS = 16
"""Number of client connections. Each has a separate port, so the kernel spreads them over the front
workers."""
_SETTLE_SECONDS = 5.0
_PAUSE_SECONDS = 0.005
_MOST_SECONDS = 300.0
"""Time limit in seconds for all turns."""
_STOP_SECONDS = 1.0
"""Time limit in seconds from SIGTERM to the node's end."""
_WRONG_WORDS = ("Traceback", "failed", "still in flight", "never retrieved")


def left_turns(attempt: Attempt) -> None:
    """Cancel turns at a node with two, then three front workers. A cancelled turn must be over, in
    any order of its beginning and its end at the node's registry."""
    for workers, _ in zip((2, 3), attempt.rounds(), strict=False):
        plan = Plan(workers, attempt.rng.randrange(2**31))
        with tempfile.TemporaryDirectory() as folder:
            tally = _run(plan, Path(folder))
        attempt.tally.note(f"{workers} workers, {plan.turns} turns")
        for trouble in tally.troubles:
            attempt.tally.finding(f"{workers} workers: {trouble}")


@dataclass(frozen=True)
class Plan:
    """The sizes of one run. workers: number of the node's front workers. turns: number of session
    turns. leave: share of turns cancelled by their client. within: longest time before a cancel,
    seconds. calls: number of abandoned HTTP completions during the turns. sessions: number of
    concurrent sessions, each with one turn after the other. step_ms: duration of the cost-free
    model's forwards."""

    workers: int
    seed: int
    turns: int = 300
    leave: float = 0.9
    within: float = 0.030
    calls: int = 200
    sessions: int = 64
    step_ms: float = 2.0


class Turns:
    """The clients of one run. Create it on its event loop."""

    def __init__(self, node: NodeProcess, plan: Plan, tally: Tally) -> None:
        self._node = node
        self._plan = plan
        self._tally = tally
        self._random = random.Random(plan.seed)
        own = (("grpc.use_local_subchannel_pool", 1),)
        self._channels = [
            grpc.aio.insecure_channel(node.address, options=own) for _ in range(_CONNECTIONS)
        ]
        self._left = plan.turns

    async def play(self) -> None:
        sessions = await asyncio.gather(*map(self._opened, range(self._plan.sessions)))
        async with asyncio.timeout(_MOST_SECONDS):
            await asyncio.gather(
                *(self._converse(number, each) for number, each in enumerate(sessions)),
                *(self._calls_left(number) for number in range(8)),
            )
        begun = time.monotonic()
        await asyncio.gather(
            *(self._held_nothing(number, each) for number, each in enumerate(sessions)),
            self._ids_are_free(),
        )
        self._tally.count("ms until all was free", round(1e3 * (time.monotonic() - begun)))
        for number, session in enumerate(sessions):
            await self._sessions(number).Close(pb.SessionCloseRequest(session_id=session))
        await self._engine_rests()
        for channel in self._channels:
            await channel.close(None)

    def _sessions(self, number: int) -> pb_grpc.SessionStub:
        channel = self._channels[number % len(self._channels)]
        return pb_grpc.SessionStub(channel)  # type: ignore[no-untyped-call]

    async def _opened(self, number: int) -> str:
        opened = await self._sessions(number).Open(pb.SessionOpenRequest())
        session: str = opened.session_id
        await self._append(number, session)
        return session

    async def _append(self, number: int, session: str) -> None:
        tokens = [self._random.randrange(1, 4000) for _ in range(8)]
        request = pb.SessionAppendRequest(session_id=session, token_ids=pb.TokenIds(ids=tokens))
        await self._sessions(number).Append(request)

    async def _converse(self, number: int, session: str) -> None:
        """Run turns of one session, one after the other, until no turn of the plan is left. number:
        the session's number."""
        while self._left > 0:
            self._left -= 1
            leaves = self._random.random() < self._plan.leave
            after = self._random.random() * self._plan.within if leaves else None
            await self._turn(number, session, after)

    async def _turn(self, number: int, session: str, after: float | None) -> None:
        """Run one turn. after: seconds until its client cancels it; None: never. A turn refused
        because of the session's previous turn is sent again."""
        sampling = pb.Sampling(max_new_tokens=16, ignore_eos=True)
        request = pb.SessionGenerateRequest(
            session_id=session, request_id=f"{number}", sampling=sampling
        )

        async def refused() -> str | None:
            call = self._sessions(number + self._left).Generate(request)
            reading = asyncio.ensure_future(_read(call))
            if after is not None:
                await asyncio.wait({reading}, timeout=after)
                call.cancel()
            return await reading

        if await self._settles(refused, f"session {number} takes no turn"):
            self._tally.count("left" if after is not None else "answered")

    async def _held_nothing(self, number: int, session: str) -> None:
        """Check for a free session: run an append and a whole turn, under the request id of its
        earlier turns."""

        async def refused() -> str | None:
            try:
                await self._append(number, session)
            except grpc.aio.AioRpcError as error:
                return error.details() or "refused"
            return None

        if await self._settles(refused, f"session {number}"):
            await self._turn(number, session, None)

    async def _settles(self, wrong: Callable[[], Awaitable[str | None]], what: str) -> bool:
        """Repeat the check until it finds nothing wrong. wrong: returns the fault, or None. Returns
        False and records a trouble if a fault remains after _SETTLE_SECONDS."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while (found := await wrong()) is not None:
            if time.monotonic() > deadline:
                self._tally.troubles.append(f"{what}: {found}")
                return False
            await asyncio.sleep(_PAUSE_SECONDS)
        return True

    async def _calls_left(self, number: int) -> None:
        for _ in range(self._plan.calls // 8):
            writer = await self._http(f"call-{number}")
            await asyncio.sleep(self._random.random() * self._plan.within)
            writer[1].close()
            self._tally.count("calls left")

    async def _ids_are_free(self) -> None:
        """Check the ids of abandoned HTTP calls: a new call with each id gets this id back. A node
        gives an id to one call at a time."""
        for number in range(8):
            expected = f"x-request-id: call-{number}\r\n".encode()

            async def taken(number: int = number, expected: bytes = expected) -> str | None:
                reader, writer = await self._http(f"call-{number}")
                head = await reader.readuntil(b"\r\n\r\n")
                writer.close()
                return None if expected in head.lower() else "taken for ever"

            if not await self._settles(taken, f"the id call-{number}"):
                return

    async def _http(self, request_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a streamed HTTP completion of a few tokens, and return its connection."""
        host, _, port = self._node.http.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 8, "stream": True}).encode()
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._node.http}\r\n"
            f"Content-Type: application/json\r\nX-Request-Id: {request_id}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return reader, writer

    async def _engine_rests(self) -> None:
        admin = pb_grpc.CacheAdminStub(self._channels[0])  # type: ignore[no-untyped-call]

        async def busy() -> str | None:
            stats = await admin.Stats(pb.StatsRequest())
            held = {
                "requests": sum(stats.requests.values()),
                "leases": stats.tree["leases"],
                "working pages": stats.pages["working"],
                "sessions": stats.sessions,
            }
            rests = not any(held.values()) and stats.integrity == "ok"
            return None if rests else f"{held} {stats.integrity}"

        await self._settles(busy, "the engine is not at rest")


async def _read(call: "grpc.aio.UnaryStreamCall[object, object]") -> str | None:
    """Read a call to its end. Returns the reason of a refusal, or None if the call was answered or
    cancelled by its client."""
    try:
        async for _ in call:
            pass
    except asyncio.CancelledError:
        pass
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.CANCELLED:
            return error.details() or "refused"
    return None


async def _play(node: NodeProcess, plan: Plan, tally: Tally) -> None:
    await Turns(node, plan, tally).play()


def _seconds_to_end(node: NodeProcess, most: float) -> float:
    """Return the seconds from SIGTERM to the node's end, or `most`. most: the longest time to
    wait."""
    begun = time.monotonic()
    os.kill(node.pid, signal.SIGTERM)
    while time.monotonic() < begun + most and not ended(node.pid):
        time.sleep(0.005)
    return time.monotonic() - begun


def _run(plan: Plan, folder: Path) -> Tally:
    tally = Tally()
    model, log = folder / "model", folder / "log"
    write_model_folder(model, free_shape(4))
    flags = ["--model", str(model), "--max-batch", "256", "--arena-mib", "256"]
    flags += ["--draft-layer", "off", "--engine-process", "process", "--drain-timeout", "20"]
    flags += ["--front-workers", str(plan.workers)]
    own = ["--weights", "free", "--step-ms", f"{plan.step_ms}"]
    with node_process("serve", own, flags, log) as node:
        try:
            asyncio.run(_play(node, plan, tally))
        except Exception as error:
            tally.troubles.append(f"the run broke: {error!r}; {node.last_words()}")
        took = _seconds_to_end(node, 30.0)
        tally.count("ms from SIGTERM to the end", round(1e3 * took))
        if took > _STOP_SECONDS:
            tally.troubles.append(f"SIGTERM took {took:.2f} s, of {_STOP_SECONDS:g} s")
        tally.troubles += _wrong_lines(log)
    return tally


def _wrong_lines(log: Path) -> Iterator[str]:
    lines = log.read_text(errors="replace").splitlines()
    wrong = [line for line in lines if any(word in line for word in _WRONG_WORDS)]
    for line in wrong[:5]:
        yield f"the node's log: {line}"
    if len(wrong) > 5:
        yield f"the node's log: and {len(wrong) - 5} lines more"
