"""One log line every ten seconds while a node is busy: how fast, how full, how much was cached.

Owns the counts since the last line. Thread rule: the event loop's.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from tasuki.dashboard.metrics.cache_metrics import arena_use
from tasuki.dashboard.metrics.node_report import NodeReport
from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine.messages import Finished, HitBreakdown, RequestPhase, RoomEnded, StatsReply

from .errors import ServerError

log = logging.getLogger(__name__)

PERIOD_SECONDS = 10.0
_QUEUED = tuple(phase for phase in RequestPhase if phase.is_queued)


class ActivityLog:
    def __init__(self) -> None:
        self._prompt = 0
        self._usable = 0
        self._output = 0

    def observe(self, message: ObservedMessage) -> None:
        """Count the prompt of what has ended: a request, or on a prefill node a room."""
        match message:
            case Finished(usage=usage):
                self._count_prompt(usage.prompt_tokens, usage.hit)
            case RoomEnded(prompt_tokens=tokens, hit=hit):
                self._count_prompt(tokens, hit)

    def _count_prompt(self, tokens: int, hit: HitBreakdown | None) -> None:
        if hit is not None:
            self._prompt += tokens
            self._usable += hit.usable_tokens

    def count_tokens(self, count: int) -> None:
        """Of answers."""
        self._output += count

    async def run(self, ask: Callable[[], Awaitable[NodeReport]]) -> None:
        """Write lines until cancelled, or until the engine has died. ask: the node's counters
        now."""
        begun = time.monotonic()
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                stats = (await ask()).stats
            except ServerError:
                return
            now = time.monotonic()
            line = self.line(stats, now - begun)
            begun = now
            if line is not None:
                log.info(line)

    def line(self, stats: StatsReply, seconds: float) -> str | None:
        """Of what was counted in the last `seconds`, which begin anew; None where the node had
        nothing to do. stats: now. Prompts count when their request has ended."""
        prompt, usable, output = self._prompt, self._usable, self._output
        self._prompt = self._usable = self._output = 0
        alive = sum(stats.requests.values())
        if not (prompt or output or alive):
            return None
        waiting = sum(stats.requests.get(phase, 0) for phase in _QUEUED)
        hit_rate = f"{100 * usable / prompt:.1f}%" if prompt else "-"
        return (
            f"{prompt / seconds:.1f} prompt and {output / seconds:.1f} output tokens/s, "
            f"{alive - waiting} running, {waiting} waiting, "
            f"hit rate {hit_rate}{_memory(stats)}"
        )


def _memory(stats: StatsReply) -> str:
    """Nothing where the arena's size is not known."""
    use = arena_use(stats)
    return "" if use is None else f", {use.words()}"
