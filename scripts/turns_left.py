"""Sessions' turns whose clients leave at once: python -m scripts.turns_left --workers 2

Starts a node with a free model and so many front workers, and begins turns of its sessions. Most
are cancelled within milliseconds. Then nothing may be held: each session takes a turn at once under
an id of a turn that was left, HTTP ids are free, the engine is at rest, and SIGTERM ends the node
within a second. Exit status 1 where one of these fails.
"""

import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from scripts.common.command import concluded, seed_option, settings_of, show
from scripts.common.tally import Tally
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.bench.load.node_process import NodeProcess, node_process
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.utils.options import option
from tests.harness.processes import ended

_CONNECTIONS = 16
"""Each with a port of its own, so that the kernel spreads them over the front workers."""
_SETTLE_SECONDS = 5.0
_BUSY_PAUSE = 0.005
_WRONG_WORDS = ("Traceback", "failed", "still in flight", "never retrieved")


@dataclass(frozen=True)
class Settings:
    workers: int = option(2, "front workers of the node")
    turns: int = option(2000, "to begin")
    leave: float = option(0.9, "the share of turns whose client leaves")
    within_ms: float = option(30.0, "in which it leaves")
    calls: int = option(200, "HTTP completions whose client leaves, beside the turns")
    sessions: int = option(64, "at a time, each with one turn after the other")
    step_ms: float = option(2.0, "that a forward of the free model takes")
    stop_seconds: float = option(1.0, "from SIGTERM to the node's end, at most")
    max_seconds: float = option(300.0, "for all turns to end, at most")
    seed: int | None = seed_option()


class Turns:
    """The clients of one run. Build it on its event loop."""

    def __init__(self, node: NodeProcess, settings: Settings, tally: Tally) -> None:
        self._node = node
        self._settings = settings
        self._tally = tally
        self._random = random.Random(settings.seed)
        own = (("grpc.use_local_subchannel_pool", 1),)
        self._channels = [
            grpc.aio.insecure_channel(node.address, options=own) for _ in range(_CONNECTIONS)
        ]
        self._left = settings.turns

    async def play(self) -> None:
        settings = self._settings
        sessions = await asyncio.gather(*map(self._opened, range(settings.sessions)))
        async with asyncio.timeout(settings.max_seconds):
            await asyncio.gather(
                *(self._converse(number, each) for number, each in enumerate(sessions)),
                *(self._calls_left(number) for number in range(8)),
            )
        begun = time.monotonic()
        await asyncio.gather(
            *(self._held_nothing(number, each) for number, each in enumerate(sessions)),
            self._id_is_free(),
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
        """One turn after the other until all are begun."""
        while self._left > 0:
            self._left -= 1
            leaves = self._random.random() < self._settings.leave
            after = self._random.random() * self._settings.within_ms * 1e-3 if leaves else None
            await self._turn(number, session, f"{number}", after)

    async def _turn(self, number: int, session: str, request_id: str, after: float | None) -> None:
        """after: seconds until its client leaves; None: it stays. A turn that the one before it
        still keeps out is asked for again."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        sampling = pb.Sampling(max_new_tokens=16, ignore_eos=True)
        request = pb.SessionGenerateRequest(
            session_id=session, request_id=request_id, sampling=sampling
        )
        while True:
            call = self._sessions(number + self._left).Generate(request)
            reading = asyncio.ensure_future(_read(call))
            if after is not None:
                await asyncio.wait({reading}, timeout=after)
                call.cancel()
            refused = await reading
            if refused is None:
                self._tally.count("left" if after is not None else "answered")
                return
            if time.monotonic() > deadline:
                self._tally.troubles.append(f"session {number} takes no turn: {refused}")
                return
            await asyncio.sleep(_BUSY_PAUSE)

    async def _held_nothing(self, number: int, session: str) -> None:
        """An append and a whole turn, under the id of the session's turns before."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            try:
                await self._append(number, session)
                break
            except grpc.aio.AioRpcError as error:
                if time.monotonic() > deadline:
                    self._tally.troubles.append(f"session {number}: {error.details()}")
                    return
                await asyncio.sleep(_BUSY_PAUSE)
        await self._turn(number, session, f"{number}", None)

    async def _calls_left(self, number: int) -> None:
        for _ in range(self._settings.calls // 8):
            writer = await self._http(f"call-{number}")
            await asyncio.sleep(self._random.random() * self._settings.within_ms * 1e-3)
            writer[1].close()
            self._tally.count("calls left")

    async def _id_is_free(self) -> None:
        """An HTTP call gets the id that it gives, which only one call at a time has."""
        for number in range(8):
            deadline = time.monotonic() + _SETTLE_SECONDS
            while True:
                reader, writer = await self._http(f"call-{number}")
                head = await reader.readuntil(b"\r\n\r\n")
                writer.close()
                if f"x-request-id: call-{number}\r\n".encode() in head.lower():
                    break
                if time.monotonic() > deadline:
                    self._tally.troubles.append(f"the id call-{number} is taken for ever")
                    return
                await asyncio.sleep(_BUSY_PAUSE)

    async def _http(self, request_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send a completion of a few tokens."""
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
        deadline = time.monotonic() + _SETTLE_SECONDS
        while True:
            stats = await admin.Stats(pb.StatsRequest())
            held = {
                "requests": sum(stats.requests.values()),
                "leases": stats.tree["leases"],
                "working pages": stats.pages["working"],
                "sessions": stats.sessions,
            }
            if not any(held.values()) and stats.integrity == "ok":
                return
            if time.monotonic() > deadline:
                self._tally.troubles.append(f"the engine is not at rest: {held} {stats.integrity}")
                return
            await asyncio.sleep(0.05)


async def _read(call: "grpc.aio.UnaryStreamCall[object, object]") -> str | None:
    """Return why the call was refused; None where it was answered, or left by its client."""
    try:
        async for _ in call:
            pass
    except asyncio.CancelledError:
        pass
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.CANCELLED:
            return error.details()
    return None


async def _play(node: NodeProcess, settings: Settings, tally: Tally) -> None:
    await Turns(node, settings, tally).play()


def _seconds_to_end(node: NodeProcess, most: float) -> float:
    """Return how long the node took from SIGTERM to its end, at most so many seconds."""
    begun = time.monotonic()
    os.kill(node.pid, signal.SIGTERM)
    while time.monotonic() < begun + most and not ended(node.pid):
        time.sleep(0.005)
    return time.monotonic() - begun


def run(settings: Settings, folder: Path) -> Tally:
    tally = Tally()
    model, log = folder / "model", folder / "log"
    write_model_folder(model, free_shape(4))
    flags = ["--model", str(model), "--max-batch", "256", "--arena-mib", "256"]
    flags += ["--draft-layer", "off", "--engine-process", "process", "--drain-timeout", "20"]
    flags += ["--front-workers", str(settings.workers)]
    own = ["--weights", "free", "--step-ms", f"{settings.step_ms}"]
    with node_process("serve", own, flags, log) as node:
        try:
            asyncio.run(_play(node, settings, tally))
        except Exception as error:
            tally.troubles.append(f"the run broke: {error!r}; {node.last_words()}")
        took = _seconds_to_end(node, 30.0)
        tally.count("ms from SIGTERM to the end", round(1e3 * took))
        if took > settings.stop_seconds:
            tally.troubles.append(f"SIGTERM took {took:.2f} s, of {settings.stop_seconds:g} s")
        tally.troubles += _wrong_lines(log)
    return tally


def _wrong_lines(log: Path) -> Iterator[str]:
    lines = log.read_text(errors="replace").splitlines()
    wrong = [line for line in lines if any(word in line for word in _WRONG_WORDS)]
    for line in wrong[:5]:
        yield f"the node's log: {line}"
    if len(wrong) > 5:
        yield f"the node's log: and {len(wrong) - 5} lines more"


def main() -> int:
    about = "Turns whose clients leave at once."
    settings = settings_of("scripts.turns_left", about, Settings, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        tally = run(settings, Path(folder))
    show(f"{settings.workers} front workers")
    assert settings.seed is not None
    return concluded("turns left", settings.seed, tally)


if __name__ == "__main__":
    sys.exit(main())
