"""The clients' requests while nodes are restarted, and checks of each answer's completeness.

Runs on one event loop's thread. Requests come at a fixed pace, independent of earlier ones. Clients
keep connections open and reuse them.
"""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tasuki.bench.load.free.tokens import VOCABULARY, answer_to
from tasuki.bench.load.words import Words

_LONGEST_SECONDS = 300.0
_WHOLE_ANSWERS = 8
"""One request in this many gets its answer as a whole; the others are streams."""
_SESSIONS = 4
"""One request in this many names a conversation."""


@dataclass(frozen=True)
class Load:
    """The load. requests: smallest number of requests. a_second: requests a second. tokens:
    smallest and largest answer, in tokens. prompt: largest prompt, in tokens. known: True if
    answers are the cost-free model's, known in advance."""

    requests: int
    a_second: float
    tokens: tuple[int, int]
    prompt: int
    known: bool
    seed: int


@dataclass
class Outcome:
    """The outcome of a load. sent, whole: numbers of requests and of whole answers. lost: the
    reason for each request without a whole answer. longest_seconds: longest time of a whole answer.
    most_at_once: most concurrent requests."""

    sent: int = 0
    whole: int = 0
    streams: int = 0
    lost: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0
    most_at_once: int = 0


@dataclass(frozen=True)
class Ask:
    number: int
    prompt: list[int]
    tokens: int
    is_stream: bool
    session: str

    @property
    def body(self) -> dict[str, Any]:
        asked = {
            "prompt": self.prompt,
            "max_tokens": self.tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": self.is_stream,
        }
        return asked | ({"stream_options": {"include_usage": True}} if self.is_stream else {})


def asks(load: Load) -> Iterator[Ask]:
    """Yield requests without end; the same seed gives the same requests."""
    drawn = random.Random(load.seed)
    for number in itertools.count():
        length = drawn.randint(1, load.prompt)
        prompt = [drawn.randrange(1, min(VOCABULARY, 2000)) for _ in range(length)]
        session = f"session-{drawn.randrange(64)}" if number % _SESSIONS == 0 else ""
        tokens = drawn.randint(*load.tokens)
        yield Ask(number, prompt, tokens, number % _WHOLE_ANSWERS != 0, session)


async def asked_at_a_pace(address: str, load: Load, over: Callable[[], bool]) -> Outcome:
    """Send requests at a fixed pace; returns once every answer has ended. address: HOST:PORT. over:
    returns True if no requests beyond the load's smallest number are wanted."""
    outcome = Outcome()
    words = Words(VOCABULARY)
    loop = asyncio.get_running_loop()
    began = loop.time()
    running: set[asyncio.Task[None]] = set()
    timeout = aiohttp.ClientTimeout(total=_LONGEST_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for ask in asks(load):
            if ask.number >= load.requests and over():
                break
            await asyncio.sleep(max(0.0, began + ask.number / load.a_second - loop.time()))
            task = loop.create_task(_ask(session, address, ask, load.known, words, outcome))
            running.add(task)
            task.add_done_callback(running.discard)
            outcome.sent += 1
            outcome.most_at_once = max(outcome.most_at_once, len(running))
        await asyncio.gather(*running)
    return outcome


async def _ask(
    session: aiohttp.ClientSession,
    address: str,
    ask: Ask,
    known: bool,
    words: Words,
    outcome: Outcome,
) -> None:
    began = time.monotonic()
    try:
        trouble = await _trouble(session, address, ask, known, words)
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        trouble = repr(error)
    seconds = time.monotonic() - began
    if trouble:
        outcome.lost.append(f"request {ask.number}, after {seconds:.1f} s: {trouble}")
        return
    outcome.whole += 1
    outcome.streams += ask.is_stream
    outcome.longest_seconds = max(outcome.longest_seconds, seconds)


async def _trouble(
    session: aiohttp.ClientSession, address: str, ask: Ask, known: bool, words: Words
) -> str:
    """Send a request. Returns the reason its answer is not whole, or an empty string if it is."""
    headers = {"x-session-id": ask.session} if ask.session else {}
    url = f"http://{address}/v1/completions"
    async with session.post(url, json=ask.body, headers=headers) as reply:
        if reply.status != 200:
            return f"HTTP {reply.status}: {(await reply.text())[:200]}"
        if ask.is_stream:
            text, tokens, done = await _read_stream(reply)
        else:
            whole = await reply.json()
            text, tokens, done = whole["choices"][0]["text"], _count(whole), True
    if not done:
        return f"the stream ends after {tokens} tokens without [DONE]"
    if tokens != ask.tokens:
        return f"{tokens} of {ask.tokens} tokens"
    if known:
        expected = answer_to(ask.prompt, VOCABULARY)
        if words.tokens(text) != [next(expected) for _ in range(ask.tokens)]:
            return "other tokens than the model writes"
    return ""


async def _read_stream(reply: aiohttp.ClientResponse) -> tuple[str, int, bool]:
    """Read a streamed reply. Returns its text, its token count, and True if the stream ended
    properly. Raises ValueError for an error in it."""
    parts: list[str] = []
    tokens = 0
    async for line in reply.content:
        if not line.startswith(b"data: "):
            continue
        data = line.removeprefix(b"data: ").strip()
        if data == b"[DONE]":
            return "".join(parts), tokens, True
        event = json.loads(data)
        if "error" in event:
            raise ValueError(f"the stream has an error: {event['error']}")
        parts += [choice["text"] for choice in event["choices"]]
        tokens = _count(event) if event.get("usage") else tokens
    return "".join(parts), tokens, False


def _count(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["completion_tokens"]
    return count
