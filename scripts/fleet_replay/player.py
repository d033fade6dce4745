"""Plays a workload on real daemons, by the simulator's rule of when a turn comes.

Owns the clock and the turns under way. A turn goes to its conversation's decode node, at its time
and never before the answer that it continues has ended. Thread rule: one thread plays; answers are
waited for by others.
"""

import heapq
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from tasuki.bench.fleet.workload import Turn, Workload
from tasuki.bench.replay.prompts import Texts
from tasuki.client.answer import Answer
from tasuki.client.errors import ClientError
from tests.harness.daemons import Node, asked

_AT_ONCE = 128


@dataclass(frozen=True)
class Played:
    """answer: None where the turn was lost, by the error. expected_tokens: of the answer."""

    prompt_tokens: int
    expected_tokens: int
    answer: Answer | None
    error: str = ""

    @property
    def lost(self) -> bool:
        return self.answer is None or len(self.answer.token_ids) != self.expected_tokens


class Player:
    def __init__(
        self,
        decode: Sequence[Node],
        workload: Workload,
        texts: Texts,
        halfway: Callable[[], None] | None,
    ) -> None:
        """halfway: called on a thread of its own once half of the turns were sent."""
        self._decode = decode
        self._workload = workload
        self._texts = texts
        self._halfway = halfway
        self._disturbed: Future[None] | None = None
        self._due: list[tuple[float, int, Turn]] = []
        self._running: dict[Future[Played], Turn] = {}
        self._sent = 0

    def play(self) -> list[Played]:
        """All turns, in the order in which they ended. Raises what halfway() raised."""
        for turn in self._workload.first_turns():
            self._push(turn, turn.seconds)
        began = time.monotonic()
        played: list[Played] = []
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            while self._due or self._running:
                now = time.monotonic() - began
                while self._due and self._due[0][0] <= now:
                    self._send(heapq.heappop(self._due)[2], pool)
                for turn, each in self._ended(self._due[0][0] - now if self._due else None):
                    played.append(each)
                    self._follow(turn, each, time.monotonic() - began)
        if self._disturbed is not None:
            self._disturbed.result()
        return played

    def _send(self, turn: Turn, pool: ThreadPoolExecutor) -> None:
        conversation = self._workload.request(turn).conversation or (turn.index, 0)
        node = self._decode[conversation[0] % len(self._decode)]
        prompt = self._texts.prompt(self._workload.prompt(turn))
        wanted = self._workload.request(turn).answer_tokens
        self._running[pool.submit(_ask, node, prompt, wanted)] = turn
        self._sent += 1
        if self._halfway is not None and 2 * self._sent >= len(self._workload.trace.requests):
            self._disturbed = pool.submit(self._halfway)
            self._halfway = None

    def _ended(self, seconds: float | None) -> list[tuple[Turn, Played]]:
        """What ends within so many seconds, or as soon as something does."""
        if not self._running:
            time.sleep(max(0.0, seconds or 0.0))
            return []
        ended, _ = wait(self._running, seconds, FIRST_COMPLETED)
        return [(self._running.pop(each), each.result()) for each in ended]

    def _follow(self, turn: Turn, played: Played, now: float) -> None:
        if played.answer is not None and not played.lost:
            places = self._workload.tokens(turn)[played.prompt_tokens :]
            self._texts.answer(places, played.answer.token_ids)
        if (following := self._workload.next_turn(turn, now)) is not None:
            self._push(*following)

    def _push(self, turn: Turn, at: float) -> None:
        heapq.heappush(self._due, (at, turn.index, turn))


def _ask(node: Node, prompt: tuple[int, ...], tokens: int) -> Played:
    try:
        answer = asked(node, prompt, b"", tokens).result()
    except ClientError as error:
        return Played(len(prompt), tokens, None, repr(error))
    return Played(len(prompt), tokens, answer)
