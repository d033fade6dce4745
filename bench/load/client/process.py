"""Client processes, separate so their CPU time is not counted as the node's.

`clients()` is the parent's side. Messages on a client's pipe, in this order: its "ready", the
parent's "go", its "admitted", the stop time (None: after all answers), its answers.
"""

import asyncio
import gc
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Protocol

from tasuki.bench.handover.process import Spawned, spawned
from tasuki.bench.load.free.tokens import answer_to
from tasuki.bench.load.words import Words

from .answer import Answer, AnswerReader
from .grpc_stream import GrpcCaller
from .http_stream import HttpCaller
from .loads import Load

_START_SECONDS = 60.0
_AT_ONCE = 32
"""Largest number of a process's sessions waiting for their first token during admission. A node
refuses requests arriving faster than it reads."""


class Caller(Protocol):
    async def ask(self, prompt: Sequence[int], reader: AnswerReader, patience: float) -> None: ...

    async def close(self) -> None: ...


@dataclass(frozen=True)
class Target:
    """The server under load. protocol: http or grpc. address: its HOST:PORT. known_answers: True if
    answers are the cost-free model's, known in advance. patience: timeout in seconds; a request
    without a byte for so long counts as unanswered. temperature: of the sampling."""

    protocol: str
    address: str
    vocabulary: int
    known_answers: bool
    patience: float
    temperature: float = 0.0

    def caller(self) -> Caller:
        if self.protocol == "http":
            return HttpCaller(self.address, Words(self.vocabulary), self.temperature)
        return GrpcCaller(self.address, self.temperature)


class LoadClient:
    """Sender of a load's prompts in a process (`loads.Client`). Thread rule: one event loop's
    thread."""

    def __init__(self, target: Target, load: Load, sessions: Sequence[int]) -> None:
        """Set up a client. sessions: numbers of the sessions run by this process."""
        self.answers: list[Answer] = []
        self.stops_at = math.inf
        self.admitted = asyncio.Event()
        self._target = target
        self._caller = target.caller()
        self._at_once = asyncio.Semaphore(_AT_ONCE if load.admitted_first else len(sessions))
        self._waiting = set(sessions) if load.admitted_first else set[int]()
        if not self._waiting:
            self.admitted.set()

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.stops_at

    @property
    def vocabulary(self) -> int:
        return self._target.vocabulary

    async def ask(
        self, session: int, turn: int, prompt: Sequence[int], asked: int, known: int = 0
    ) -> Answer:
        if session in self._waiting:
            await self._at_once.acquire()
        answer = Answer(session, turn, asked, prompt_tokens=len(prompt), known_tokens=known)
        self.answers.append(answer)
        expected = answer_to(prompt, self.vocabulary) if self._target.known_answers else None
        reader = AnswerReader(answer, expected, lambda: self._begun(session))
        try:
            await self._caller.ask(prompt, reader, self._target.patience)
        finally:
            # Signal it even without any token: the wait for all would never end otherwise.
            self._begun(session)
        return answer

    def _begun(self, session: int) -> None:
        if session in self._waiting:
            self._waiting.remove(session)
            self._at_once.release()
            if not self._waiting:
                self.admitted.set()

    async def close(self) -> None:
        await self._caller.close()


def run_client(
    channel: Connection, target: Target, load: Load, number: int, processes: int
) -> None:
    """Run a client process. channel: pipe to the parent. number: this process's number among
    `processes`."""
    # A collection over all tokens would be a gap in every stream.
    gc.disable()
    asyncio.run(_run(channel, target, load, range(number, load.sessions, processes)))


async def _run(channel: Connection, target: Target, load: Load, sessions: Sequence[int]) -> None:
    client = LoadClient(target, load, sessions)
    channel.send("ready")
    await asyncio.to_thread(channel.recv)
    lives = [asyncio.create_task(load.live(client, session)) for session in sessions]
    await client.admitted.wait()
    channel.send("admitted")
    stops_at: float | None = await asyncio.to_thread(channel.recv)
    if stops_at is not None:
        client.stops_at = stops_at
        if load.cut:
            await asyncio.sleep(stops_at - time.monotonic())
            for life in lives:
                life.cancel()
    for ended in await asyncio.gather(*lives, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    await client.close()
    channel.send(client.answers)


class Clients:
    """All client processes of one run. Call the methods in the order of their definition, once
    each. Raises BenchError if a process has ended, or exceeds its time limit."""

    def __init__(self, processes: Sequence[Spawned], seconds: float) -> None:
        """Take ownership of the processes. seconds: time limit for admitting sessions, and for the
        end after stop()."""
        self._processes = processes
        self._seconds = seconds

    def start(self) -> float:
        """Start all processes at one moment. Returns this moment on the monotonic clock."""
        for process in self._processes:
            process.received(_START_SECONDS)
        for process in self._processes:
            process.channel.send("go")
        return time.monotonic()

    def wait_admitted(self) -> None:
        for process in self._processes:
            process.received(self._seconds)

    def stop(self, at: float | None) -> None:
        """Stop the clients. at: time of the stop on the monotonic clock; None: after all
        answers."""
        for process in self._processes:
            process.channel.send(at)

    def answers(self) -> list[Answer]:
        return [answer for process in self._processes for answer in process.received(self._seconds)]


@contextmanager
def clients(target: Target, load: Load, processes: int, seconds: float) -> Iterator[Clients]:
    """Run the client processes until the block ends. seconds: like in Clients."""
    with ExitStack() as stack:
        spawns = [
            stack.enter_context(
                spawned(f"client process {number}", run_client, target, load, number, processes)
            )
            for number in range(min(processes, load.sessions))
        ]
        yield Clients(spawns, seconds)
