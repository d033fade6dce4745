"""The cost of metrics: the same answers with and without them, in turns within one run.

python -m scripts.metrics_cost [--pairs 800] [--steps 16] [--clients 4]

One engine of the embedded model decodes; its messages go through a front's client to readers, as
in a daemon. A pair is two short segments, one with metrics and history and one without, every
second pair the other way round; in each segment as many answers end and begin. So whatever else the
machine does falls on both alike, and drift cancels. The figures are the median over pairs of one's
time over the other's, and where 95 % of the medians of resampled pairs lie. CPU time decides: the
engine has one thread, so that this is its wall time on a core of its own, whoever else is on this
one. What is rare, a sample of the counters a second and a scrape every fifteen, no median shows: it
is part of what observers take, measured directly, in segments of its own since reading a clock at
every message costs as much as what it times. Exit status 1 where the target is missed.
"""

import argparse
import asyncio
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from math import ceil

import numpy as np
from numpy.typing import NDArray

from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.observed import NodeReport
from tasuki.engine.assembly.engines import build_cache, build_fused_engine
from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages.requests import Submit
from tasuki.engine.messages.types import RequestId
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.daemon.node_recorder import NodeRecorder
from tasuki.server.engine_client import EngineClient, Observed, RequestObserver

MOST = 0.01
_PROMPT_TOKENS = 70
_SCRAPED = 15
"""Samples, one a second, from scrape to scrape."""
_RESAMPLED = 4000
_TIMED_SHARE = 0.25
"""Segments in which observers are timed, for each pair."""


class Watch(Enum):
    NOBODY = "no metrics"
    OBSERVERS = "metrics and history"
    TIMED = "metrics and history, with a clock at each message"


@dataclass(frozen=True)
class Spent:
    wall: float
    cpu: float


class Rig(RequestObserver):
    """An engine that is stepped by hand, its client, and observers that can be left out."""

    def __init__(self) -> None:
        config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=64)
        parts = build_parts(config)
        self._engine = build_fused_engine(config, parts, build_cache(config, parts))
        self._exposition = Exposition()
        self._recorder = NodeRecorder(time.time)
        self._watch = Watch.NOBODY
        self.observed = 0.0
        """CPU seconds in observers while they are timed, reading the clock included."""
        loop = asyncio.get_running_loop()
        self._client = EngineClient(self._engine.handle, loop, observer=self)
        self._asked = 0
        self._samples = 0
        self._sampled_at = time.monotonic()

    def observe(self, message: Observed) -> None:
        if self._watch is Watch.NOBODY:
            return
        began = time.thread_time() if self._watch is Watch.TIMED else 0.0
        self._exposition.observe(message)
        self._recorder.observe(message)
        if self._watch is Watch.TIMED:
            self.observed += time.thread_time() - began

    def count_tokens(self, count: int) -> None:
        if self._watch is Watch.NOBODY:
            return
        began = time.thread_time() if self._watch is Watch.TIMED else 0.0
        self._exposition.count_tokens(count)
        self._recorder.count_tokens(count)
        if self._watch is Watch.TIMED:
            self.observed += time.thread_time() - began

    async def keep_asking(self, first_tokens: int, tokens: int) -> None:
        """One client after the other's answer, for ever."""
        answered = first_tokens
        while True:
            self._asked += 1
            prompt = np.full(_PROMPT_TOKENS, 1 + self._asked % 1000, dtype=np.int32)
            sampling = SamplingParams(max_new_tokens=answered, ignore_eos=True)
            submit = Submit(RequestId(str(self._asked)), prompt, sampling)
            async with aclosing(self._client.generate(submit)) as items:
                async for _ in items:
                    pass
            answered = tokens

    async def segment(self, steps: int, watch: Watch) -> Spent:
        self._watch = watch
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self._engine.step()
            self._client.deliver(self._engine.take_outbox())
            # Messages are dispatched, and readers read them.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        if watch is not Watch.NOBODY:
            await self._sample()
        return Spent(time.perf_counter() - wall, time.process_time() - cpu)

    async def _sample(self) -> None:
        """What a node does each second, and a scrape."""
        if time.monotonic() - self._sampled_at < 1.0:
            return
        self._sampled_at = time.monotonic()
        self._samples += 1
        asked = asyncio.create_task(self._client.counters())
        await asyncio.sleep(0)
        began = time.thread_time()
        self._client.deliver(self._engine.take_outbox())
        report = NodeReport(await asked)
        self._recorder.keep_sample(report)
        if self._samples % _SCRAPED == 0:
            self._exposition.text(report)
        if self._watch is Watch.TIMED:
            self.observed += time.thread_time() - began


async def pairs(count: int, steps: int, clients: int) -> tuple[list[tuple[Spent, Spent]], float]:
    """Neighbouring segments: with metrics, without. And the share of the former's CPU time that
    observers take, which needs no comparison."""
    rig = Rig()
    askers = [
        # So that one answer ends in each segment.
        asyncio.create_task(rig.keep_asking(steps * (number + 1), steps * clients))
        for number in range(clients)
    ]
    for _ in range(clients):
        await rig.segment(steps, Watch.OBSERVERS)
    spent, order = [], (Watch.OBSERVERS, Watch.NOBODY)
    for _ in range(count):
        took = {watch: await rig.segment(steps, watch) for watch in order}
        spent.append((took[Watch.OBSERVERS], took[Watch.NOBODY]))
        order = order[::-1]
    timed = [await rig.segment(steps, Watch.TIMED) for _ in range(ceil(count * _TIMED_SHARE))]
    for asker in askers:
        asker.cancel()
    await asyncio.gather(*askers, return_exceptions=True)
    return spent, rig.observed / sum(segment.cpu for segment in timed)


@dataclass(frozen=True)
class Difference:
    """Of one's time from the other's, as a share; 95 % of the resampled medians lie from low to
    high."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, observed: NDArray[np.float64], unobserved: NDArray[np.float64]) -> "Difference":
        ratios = observed / unobserved - 1
        drawn = np.random.default_rng(1).integers(0, len(ratios), (_RESAMPLED, len(ratios)))
        low, high = np.percentile(np.median(ratios[drawn], axis=1), (2.5, 97.5))
        return cls(float(np.median(ratios)), float(low), float(high))

    @property
    def within(self) -> bool:
        return max(-self.low, self.high) < MOST

    def line(self, name: str, count: int) -> str:
        low, middle, high = (f"{100 * part:+.2f} %" for part in (self.low, self.median, self.high))
        return f"{name:<10} {middle}, 95 % from {low} to {high} ({count} pairs)"


def main() -> int:
    parser = argparse.ArgumentParser(description="What metrics cost a node that decodes.")
    parser.add_argument("--pairs", type=int, default=800)
    parser.add_argument("--steps", type=int, default=16, help="in a segment")
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    spent, share = asyncio.run(pairs(given.pairs, given.steps, given.clients))
    differences = {
        name: Difference.of(
            np.array([getattr(observed, field) for observed, _ in spent]),
            np.array([getattr(unobserved, field) for _, unobserved in spent]),
        )
        for name, field in (("wall time", "wall"), ("CPU time", "cpu"))
    }
    for name, difference in differences.items():
        print(difference.line(name, len(spent)))
    print(f"observers  {100 * share:.2f} % of the CPU time of segments in which they are timed")
    passed = differences["CPU time"].within and share < MOST
    print(
        f"{'PASSED' if passed else 'FAILED'}: asked is decode throughput within "
        f"{100 * MOST:.0f} %, by CPU time; where its interval is wider, give more --pairs"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
