"""The gain of an early start on a slow link: from Done to the second token, with and without it.

Two engines of one process, driven by hand, over a loopback wire of a chosen rate (the throttle is
in the sender's transport); the same prompts' lengths, taken in turns in one run. The main thread is
both engines' loop; transfers and the early step have their own, as in a node.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from statistics import median
from typing import TypeVar

import numpy as np

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.report import Row
from tasuki.bench.measure.rig import random_parts
from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import (
    build_cache,
    build_decode_engine,
    build_early_start,
    build_prefill_engine,
)
from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.model.known_models import PUBLISHED
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.transfer.windows.window import Destination

from .hop import Hop

Sent = TypeVar("Sent")

_SHAPE = PUBLISHED["0.8b"] | {
    "vocab_size": 1024,
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 16,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "max_position_embeddings": 4096,
}
_CONFIG = EngineConfig(dtype="float32", arena_mib=64, local_prefill_tokens=0)
_PROMPT = 70
_BYTES_PER_SECOND = 1e6
_REPEATS = 5
_SECONDS = 60.0


@dataclass
class _Waits:
    """Seconds from Done (every digest equal) to the second token, and from the first token to
    it."""

    after_done: list[float] = field(default_factory=list)
    after_first: list[float] = field(default_factory=list)


def rows() -> Iterator[Row | str]:
    rig = _Pair()
    try:
        waits = {early: _Waits() for early in (False, True)}
        for number in range(2 * (_REPEATS + 1)):
            taken = rig.hand_over(number, early=bool(number % 2))
            if number >= 2:
                waits[bool(number % 2)].after_done.append(taken[0])
                waits[bool(number % 2)].after_first.append(taken[1])
    finally:
        rig.close()
    late, early = median(waits[False].after_done), median(waits[True].after_done)
    rate = f"{_BYTES_PER_SECOND / 1e6:g} MB/s"
    yield Row(
        f"Done to the second token, link throttled to {rate}, joining the batch",
        late,
        extra={"from the first token ms": 1e3 * median(waits[False].after_first)},
    )
    yield Row(
        f"Done to the second token, link throttled to {rate}, early start",
        early,
        target="sooner than a whole step",
        met=early < late,
        extra={
            "from the first token ms": 1e3 * median(waits[True].after_first),
            "of joining the batch": early / late,
        },
    )


class _Pair:
    def __init__(self) -> None:
        model = ModelConfig.from_dict(_SHAPE)
        source, target = random_parts(model, _CONFIG), random_parts(model, _CONFIG)
        memory = (source.arena.bytes, target.arena.bytes)
        self._hop = Hop(*memory, source.layout, source.steps, _BYTES_PER_SECOND)
        self._ended: SimpleQueue[m.EarlyStepEnded] = SimpleQueue()
        self._early = build_early_start(
            target, self._hop.receiver.barrier, lambda: self._ended.put(m.EarlyStepEnded())
        )
        self._prefill = build_prefill_engine(
            _CONFIG, source, build_cache(_CONFIG, source), self._hop.sender
        )
        self._decode = build_decode_engine(
            _CONFIG, target, build_cache(_CONFIG, target), self._early
        )
        self._decode.handle(m.PeersChanged(True))

    def close(self) -> None:
        self._early.close()
        self._hop.close()

    def hand_over(self, number: int, *, early: bool) -> tuple[float, float]:
        """One request of two tokens: seconds from Done, and from the first token, to the second."""
        prompt = np.random.default_rng(number).integers(0, 1024, _PROMPT, dtype=np.int32)
        sampling = SamplingParams(max_new_tokens=2, ignore_eos=True)
        self._decode.handle(m.Submit(m.RequestId(f"bench-{number}"), prompt, sampling))
        self._decode.step()
        wanted = _sent(self._decode.take_outbox(), m.HandoverWanted)
        room, generation = wanted.ticket.room, wanted.ticket.generation
        self._prefill.handle(m.PrefillReserve(wanted.ticket, wanted.prompt))
        self._prefill.step()
        self._decode.handle(m.GrantWanted(room))
        self._decode.step()
        grant = _sent(self._decode.take_outbox(), m.HandoverGranted).grant
        granted = Destination(grant.first_page, grant.pages, grant.slot)
        self._hop.open(room, generation, granted)
        self._prefill.handle(m.PrefillStart(grant))
        while self._prefill.step():
            pass
        token = _sent(self._prefill.take_outbox(), m.PrefillToken)
        begun = self._early.counters["begun"]
        self._decode.handle(
            m.RemoteReady(
                room,
                token.token,
                token.logprob,
                token.margin,
                token.hit,
                "sender",
                tail_seconds=self._hop.sender.remaining_seconds(room) if early else 0.0,
            )
        )
        if early and self._early.counters["begun"] == begun:
            raise BenchError("no early step was begun: the transfer's rest was no longer than one")
        first = time.perf_counter()
        report = self._hop.verified(room, generation)
        done = time.perf_counter()
        transfer = m.TransferReport(
            report.bytes,
            report.windows,
            report.pages,
            report.hidden_seconds,
            report.exposed_seconds,
        )
        self._decode.handle(m.RemoteDone(room, transfer))
        if early:
            self._decode.handle(self._ended.get(timeout=_SECONDS))
        while self._decode.step():
            pass
        second = time.perf_counter()
        _sent(self._decode.take_outbox(), m.Finished)
        self._hop.receiver.forget(room)
        self._prefill.handle(m.PrefillEnd(room))
        return second - done, second - first


def _sent(outbox: list[m.Outbox], kind: type[Sent]) -> Sent:
    """The last of its kind. Raises BenchError where there is none."""
    for message in reversed(outbox):
        if isinstance(message, kind):
            return message
    raise BenchError(f"no {kind.__name__} came: give a larger --arena-mib")
