"""Plays a workload through a gateway over HTTP, by the simulator's rule of when a turn comes.

A turn comes at its time and never before the answer that it continues has ended. Where the gateway
does not answer, it is asked again every so often, as clients do. Owns the turns under way. Thread
rule: one event loop's.
"""

import asyncio
import heapq
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import aiohttp
import msgspec

from tasuki.bench.fleet.workload import Turn, Workload
from tasuki.bench.load.free.tokens import VOCABULARY, answer_to
from tasuki.bench.replay.texts import Texts

from .simulated_nodes import MODEL

_AGAIN_SECONDS = 0.25
_PATIENCE_SECONDS = 120.0
"""From a turn's time on it is asked again for so long; then it counts as lost."""
_TAIL_SECONDS = 20.0
"""After the last turn came, for prompts that wait; answers may take minutes more and are left."""
UNDER_WAY = "under way at the end"


class _Meta(msgspec.Struct):
    cached_tokens: int = 0


class _Answer(msgspec.Struct):
    output_ids: list[int]
    meta_info: _Meta


_decoder = msgspec.json.Decoder(list[_Answer])


@dataclass
class Asked:
    """One turn. Times are of the monotonic clock. due: when it came. name, sent: of the first
    request for it. continued: tokens of the text that it goes on from; 0 where it begins one.
    cached: of its prompt, as the gateway's client is told. error: why it was lost, or UNDER_WAY;
    empty where it was answered."""

    turn: Turn
    prompt_tokens: int
    continued: int
    due: float
    sent: float = 0.0
    ended: float = 0.0
    cached: int = 0
    tries: int = 0
    name: str = ""
    error: str = UNDER_WAY


class Player:
    def __init__(self, address: str, workload: Workload, seconds: float) -> None:
        """address: HOST:PORT of the gateway. seconds: turns that come later are left out."""
        self.asked: list[Asked] = []
        self.began = 0.0
        self._url = f"http://{address}/generate"
        self._workload = workload
        self._seconds = seconds
        self._texts: dict[bytes, Texts] = {}
        self._due: list[tuple[float, int, Turn, int]] = []
        self._woken = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Nothing is sent from now on: what stands before a gateway knows that it is not ready."""
        self._open.clear()

    def go_on(self) -> None:
        self._open.set()

    async def play(self) -> None:
        """Until all turns were answered or given up, or the time is over. Raises what a turn raised
        that is no gateway's answer."""
        for turn in self._workload.first_turns():
            self._push(turn, turn.seconds, 0)
        self.began = time.monotonic()
        connector = aiohttp.TCPConnector(limit=0)
        patience = aiohttp.ClientTimeout(total=None, sock_connect=10.0)
        async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:
            while self._due or self._running:
                now = time.monotonic() - self.began
                if now > self._seconds + _TAIL_SECONDS:
                    break
                while self._due and self._due[0][0] <= now:
                    _, _, turn, continued = heapq.heappop(self._due)
                    task = asyncio.create_task(self._ask(session, turn, continued))
                    self._running.add(task)
                    task.add_done_callback(self._ended)
                await self._next(self._due[0][0] - now if self._due else _TAIL_SECONDS)
            await self._leave()

    async def _next(self, seconds: float | None) -> None:
        self._woken.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)

    async def _leave(self) -> None:
        left = list(self._running)
        for task in left:
            task.cancel()
        for ended in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._woken.set()
        if not task.cancelled():
            task.result()

    async def _ask(self, session: aiohttp.ClientSession, turn: Turn, continued: int) -> None:
        workload = self._workload
        texts = self._texts_of(workload.salt(turn))
        prompt = texts.prompt(workload.prompt(turn))
        wanted = workload.request(turn).answer_tokens
        asked = Asked(turn, len(prompt), continued, time.monotonic())
        self.asked.append(asked)
        expected = list(islice(answer_to(prompt, VOCABULARY), wanted))
        while time.monotonic() - asked.due < _PATIENCE_SECONDS:
            await self._open.wait()
            if await self._try(session, asked, prompt, expected):
                break
            await asyncio.sleep(_AGAIN_SECONDS)
        asked.ended = time.monotonic()
        texts.answer(workload.tokens(turn)[len(prompt) :], expected)
        following = workload.next_turn(turn, asked.ended - self.began)
        if following is not None:
            self._push(following[0], following[1], len(prompt) + wanted)

    async def _try(
        self,
        session: aiohttp.ClientSession,
        asked: Asked,
        prompt: Sequence[int],
        expected: Sequence[int],
    ) -> bool:
        turn = asked.turn
        name = f"{turn.stream}-{turn.index}-{asked.tries}"
        asked.tries += 1
        asked.error = UNDER_WAY
        body = {
            "model": MODEL,
            "rid": name,
            "input_ids": prompt,
            "sampling_params": {
                "max_new_tokens": len(expected),
                "ignore_eos": True,
                "temperature": 0,
            },
        }
        content = msgspec.json.encode(body)
        if not asked.name:
            asked.name, asked.sent = name, time.monotonic()
        try:
            async with session.post(
                self._url, data=content, headers={"Content-Type": "application/json"}
            ) as reply:
                read = await reply.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            asked.error = repr(error)
            return False
        if reply.status != 200:
            asked.error = f"HTTP {reply.status} {read[:200]!r}"
            return False
        (answer,) = _decoder.decode(read)
        asked.cached = answer.meta_info.cached_tokens
        asked.error = "" if answer.output_ids == expected else "another answer"
        return True

    def _texts_of(self, salt: bytes) -> Texts:
        if salt not in self._texts:
            self._texts[salt] = Texts(VOCABULARY, int.from_bytes(salt, "big"))
        return self._texts[salt]

    def _push(self, turn: Turn, at: float, continued: int) -> None:
        if at < self._seconds:
            heapq.heappush(self._due, (at, turn.stream << 32 | turn.index, turn, continued))
            self._woken.set()
