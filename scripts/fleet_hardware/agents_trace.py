"""The prompts of `tasuki bench serving`'s agents as a trace.

The bench's own sessions ask a client that only writes down; what they share is read off their
tokens. Deterministic. A prompt is cut into blocks of the greatest length that divides all of a
session's parts, so that prompts part in the trace at the very token at which they part in the
bench.
"""

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np

from tasuki.bench.load.client.answer import Answer
from tasuki.bench.load.client.loads import Agents, Load, WarmUp, drawn
from tasuki.bench.replay.trace import Trace, TraceRequest

WARM_UP_SECONDS = 10.0
"""Between two requests of the warm-up: each has ended long before the next one."""


@dataclass(frozen=True)
class Asking:
    session: int
    prompt: Sequence[int]
    answer_tokens: int


@dataclass
class Recorder:
    """`loads.Client`: answers at once, with tokens that nobody knows before."""

    vocabulary: int
    over: bool = False
    askings: list[Asking] = field(default_factory=list)

    async def ask(self, session: int, turn: int, prompt: Sequence[int], asked: int) -> Answer:
        self.askings.append(Asking(session, prompt, asked))
        tokens = drawn(f"answer {session} {turn}", asked, self.vocabulary)
        return Answer(session, turn, asked, tokens=array("i", tokens))


def agents_trace(agents: Agents, warm: int, vocabulary: int) -> tuple[Trace, float]:
    """And the second at which the agents begin, all at once; what comes before is the warm-up. A
    session's turns have one time: each comes as soon as the answer before it has ended."""
    block = gcd(agents.prefix, agents.turn, agents.answer)
    blocks = _BlockIds(block)
    begin = warm * WARM_UP_SECONDS
    requests = []
    if warm:
        for number, each in enumerate(_asked(WarmUp(agents, warm), vocabulary)):
            at = number * WARM_UP_SECONDS
            requests.append(_request(at, each, blocks, (agents.sessions + number, 0)))
    for each in _asked(agents, vocabulary):
        requests.append(_request(begin, each, blocks, (each.session, 0)))
    return Trace(f"{agents.sessions} agents", block, tuple(requests)), begin


def _asked(load: Load, vocabulary: int) -> list[Asking]:
    recorder = Recorder(vocabulary)

    async def live() -> None:
        for session in range(load.sessions):
            await load.live(recorder, session)

    asyncio.run(live())
    return recorder.askings


def _request(
    at: float, asking: Asking, blocks: "_BlockIds", conversation: tuple[int, int]
) -> TraceRequest:
    return TraceRequest(
        timestamp_ms=round(1000 * at),
        prompt_tokens=len(asking.prompt),
        answer_tokens=asking.answer_tokens,
        block_ids=blocks.of(asking.prompt),
        conversation=conversation,
        stop="",
    )


class _BlockIds:
    """Equal ids for blocks of equal tokens behind equal blocks."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._ids: dict[tuple[int, tuple[int, ...]], int] = {}

    def of(self, prompt: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """REQUIRES: the prompt is made of whole blocks."""
        assert len(prompt) % self._block == 0, (len(prompt), self._block)
        found, before = [], 0
        for at in range(0, len(prompt), self._block):
            key = (before, tuple(prompt[at : at + self._block]))
            before = self._ids.setdefault(key, len(self._ids) + 1)
            found.append(before)
        return np.array(found, dtype=np.int64)
