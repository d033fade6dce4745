"""What metrics cost: the same answers with and without them, in turns within one run.

python -m scripts.metrics_cost [--turns 400] [--steps 20] [--clients 4]

One engine of the embedded model decodes; what it says goes through a front's client to readers, as
in a daemon, and every so many steps metrics and history are left out or put back. Turns are short
and alternate, so that what else the machine does falls on both alike; the figures are the median
over pairs of neighbours, of wall time and of this process's CPU time.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from tasuki.client.embedded import embedded_model
from tasuki.dashboard.exposition import Exposition
from tasuki.dashboard.told import Told
from tasuki.engine.build import build_engine, build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.engine import Engine
from tasuki.engine.messages import Evicted, RequestId, Submit
from tasuki.engine.role import Role
from tasuki.front.engine_client import EngineClient
from tasuki.front.node_recorder import NodeRecorder
from tasuki.model.sampling import SamplingParams

_PROMPT_TOKENS = 70
_ANSWER_TOKENS = 500


@dataclass(frozen=True)
class Spent:
    wall: float
    cpu: float


class Rig:
    """An engine that is stepped by hand, its client, and observers that can be left out."""

    def __init__(self) -> None:
        config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=64)
        self._engine: Engine = build_engine(config, Role.FUSED, build_parts(config))
        self._exposition = Exposition()
        self._recorder = NodeRecorder(time.time)
        self.observing = True
        self.observed = 0.0
        """CPU seconds in observers, reading the clock included."""
        loop = asyncio.get_running_loop()
        self._client = EngineClient(self._engine.handle, loop, observe=self._observe)
        self._asked = 0

    def _observe(self, message: Told) -> None:
        if self.observing:
            began = time.thread_time()
            self._exposition.observe(message)
            self._recorder.observe(message)
            self.observed += time.thread_time() - began

    async def keep_asking(self) -> None:
        """One client after the other's answer, for ever."""
        while True:
            self._asked += 1
            prompt = np.full(_PROMPT_TOKENS, 1 + self._asked % 1000, dtype=np.int32)
            sampling = SamplingParams(max_new_tokens=_ANSWER_TOKENS, ignore_eos=True)
            submit = Submit(RequestId(str(self._asked)), prompt, sampling)
            async with aclosing(self._client.generate(submit)) as items:
                async for _ in items:
                    pass

    async def turn(self, steps: int, observing: bool) -> Spent:
        self.observing = observing
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self._engine.step()
            for message in self._engine.take_outbox():
                if isinstance(message, Evicted):
                    self._observe(message)
                else:
                    self._client.deliver(message)
            # What was told is dispatched, and readers read it.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return Spent(time.perf_counter() - wall, time.process_time() - cpu)


async def pairs(turns: int, steps: int, clients: int) -> tuple[list[tuple[Spent, Spent]], float]:
    """Neighbouring turns: with metrics, without. And the share of the former's CPU time that
    observers took, which needs no comparison."""
    rig = Rig()
    askers = [asyncio.create_task(rig.keep_asking()) for _ in range(clients)]
    await rig.turn(steps, observing=True)
    rig.observed = 0.0
    spent = [await rig.turn(steps, observing=number % 2 == 0) for number in range(turns)]
    for asker in askers:
        asker.cancel()
    await asyncio.gather(*askers, return_exceptions=True)
    neighbours = [
        (one, other) if number % 2 == 0 else (other, one)
        for number, (one, other) in enumerate(pairwise(spent))
    ]
    return neighbours, rig.observed / sum(turn.cpu for turn in spent[::2])


def line(name: str, ratios: Sequence[float]) -> str:
    low, middle, high = statistics.quantiles(ratios, n=4)
    # Of a median, as for a normal spread; neighbours share a turn, so half of the pairs count.
    error = 1.25 * (high - low) / 1.35 / (len(ratios) / 2) ** 0.5
    return f"{name:<10} {100 * (middle - 1):+.2f} % +- {100 * error:.2f} (median of {len(ratios)})"


def main() -> None:
    parser = argparse.ArgumentParser(description="What metrics cost a node that decodes.")
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    given = parser.parse_args()
    measured, share = asyncio.run(pairs(given.turns, given.steps, given.clients))
    print(line("wall time", [told.wall / silent.wall for told, silent in measured]))
    print(line("CPU time", [told.cpu / silent.cpu for told, silent in measured]))
    print(f"observers  {100 * share:.2f} % of the CPU time of turns with metrics")


if __name__ == "__main__":
    main()
