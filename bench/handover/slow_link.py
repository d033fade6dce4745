"""The gain on a slow link from an early start of decoding, and from fewer bytes on the wire. All
within one process.

Hop is a sender and a receiver over a loopback transport of a chosen rate; the throttle is in the
sender's transport.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from statistics import median
from typing import TypeVar

import numpy as np
import torch

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.report import Row
from tasuki.bench.measure.rig import page_ids, random_parts
from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import (
    build_cache,
    build_decode_engine,
    build_early_start,
    build_prefill_engine,
)
from tasuki.engine.config import EngineConfig
from tasuki.model.families.registry import config_of, published
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import StepCounter
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.parts import Heads, LayerCache, Part, Segments
from tasuki.transfer.chunks.chunk import Destination, FinishedLayers
from tasuki.transfer.data_plane import DataPlane, TransferEngine
from tasuki.transfer.reports import SendReport, TransferEnd, TransferSent
from tasuki.transfer.settings import Precision, WirePrecision, WireSettings
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport

_SECONDS = 60.0
_LEASE_SECONDS = 3600.0


class Hop:
    """A sender and a receiver between two arenas of one layout. Call close() at the end."""

    def __init__(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        layout: CacheLayout,
        steps: StepCounter,
        bytes_per_second: float,
        wire: WireSettings | None = None,
    ) -> None:
        """Set up a hop. source, target: bytes of the arenas, uint8 [slabs * slab_bytes]. steps:
        counter of the completed layers filling the source. wire: format of the bytes on the
        wire."""
        fabric = LoopbackFabric()
        link, landing = (LoopbackTransport(fabric, name) for name in ("sender", "receiver"))
        link.bytes_per_second = bytes_per_second
        planes = [
            DataPlane.over(memory, layout, "random", transport, "loopback", "bench", wire)
            for memory, transport in ((source, link), (target, landing))
        ]
        # Only one end of each is used.
        here, there = (TransferEngine.over(plane, steps, None, _LEASE_SECONDS) for plane in planes)
        self.sender, self.receiver = here.sender, there.receiver
        self.sender.connect("receiver", planes[1].node.arenas)
        self._ended: SimpleQueue[TransferEnd] = SimpleQueue()
        self.sender.start()
        self.receiver.start()

    def open(self, transfer_id: int, generation: int, destination: Destination) -> None:
        self.receiver.expect(transfer_id, generation, destination)
        self.sender.open(transfer_id, generation, "receiver", destination, self._ended.put)

    def verified(self, transfer_id: int, generation: int) -> SendReport:
        """Wait until the sender has ended and every digest is equal. Returns the sender's report.
        Raises BenchError."""
        report = sent_whole(self._ended).report
        self.receiver.verify(transfer_id, generation, report.digests, _SECONDS)
        return report

    def close(self) -> None:
        self.sender.stop()
        self.receiver.stop()


def sent_whole(ended: SimpleQueue[TransferEnd]) -> TransferSent:
    """Return the sender's next end of a transfer. Raises BenchError if none comes, or the transfer
    failed."""
    try:
        end = ended.get(timeout=_SECONDS)
    except Empty as error:
        raise BenchError("the room does not end") from error
    if not isinstance(end, TransferSent):
        raise BenchError(f"the room broke: {end.reason}")
    return end


Sent = TypeVar("Sent")

_SHAPE = published("0.8b") | {
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
_EARLY_RATE = 1e6
_EARLY_REPEATS = 5
_EARLY_SECONDS = 60.0


@dataclass
class _Waits:
    """Seconds of several requests, each to the second token. after_done: from Done (every digest is
    equal). after_first: from the first token."""

    after_done: list[float] = field(default_factory=list)
    after_first: list[float] = field(default_factory=list)


def early_rows() -> Iterator[Row | str]:
    """Measure the gain of an early start of decoding: the seconds from Done to the second token,
    with and without it.

    Two engines of one process, stepped by the bench, alternate over prompts of the same lengths in
    one run. The main thread is both engines' loop; transfers and the early step have their own
    threads, like in a node.
    """
    rig = _Pair()
    try:
        waits = {early: _Waits() for early in (False, True)}
        for number in range(2 * (_EARLY_REPEATS + 1)):
            taken = rig.hand_over(number, early=bool(number % 2))
            if number >= 2:
                waits[bool(number % 2)].after_done.append(taken[0])
                waits[bool(number % 2)].after_first.append(taken[1])
    finally:
        rig.close()
    late, early = median(waits[False].after_done), median(waits[True].after_done)
    rate = f"{_EARLY_RATE / 1e6:g} MB/s"
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
        model = config_of(_SHAPE)
        source, target = random_parts(model, _CONFIG), random_parts(model, _CONFIG)
        memory = (source.arena.bytes, target.arena.bytes)
        self._hop = Hop(*memory, source.layout, source.steps, _EARLY_RATE)
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
        """Transfer one request of two tokens. Returns the seconds from Done to the second token,
        and the seconds from the first token to it. early: the decode engine may step before Done.
        Raises BenchError without an early step."""
        prompt = np.random.default_rng(number).integers(0, 1024, _PROMPT, dtype=np.int32)
        sampling = SamplingParams(max_new_tokens=2, ignore_eos=True)
        self._decode.handle(m.Submit(m.RequestId(f"bench-{number}"), prompt, sampling))
        self._decode.step()
        wanted = _sent(self._decode.take_outbox(), m.HandoverWanted)
        transfer_id, generation = (
            wanted.transfer_request.transfer_id,
            wanted.transfer_request.generation,
        )
        self._prefill.handle(m.PrefillReserve(wanted.transfer_request, wanted.prompt))
        self._prefill.step()
        self._decode.handle(m.GrantWanted(transfer_id))
        self._decode.step()
        grant = _sent(self._decode.take_outbox(), m.HandoverGranted).grant
        self._hop.open(transfer_id, generation, grant.destination)
        self._prefill.handle(m.PrefillStart(grant))
        while self._prefill.step():
            pass
        token = _sent(self._prefill.take_outbox(), m.PrefillToken)
        begun = self._early.counters["begun"]
        self._decode.handle(
            m.RemoteReady(
                transfer_id,
                token.token,
                token.logprob,
                token.margin,
                token.hit,
                "sender",
                tail_seconds=self._hop.sender.remaining_seconds(transfer_id) if early else 0.0,
            )
        )
        if early and self._early.counters["begun"] == begun:
            raise BenchError("no early step was begun: the transfer's rest was no longer than one")
        first = time.perf_counter()
        report = self._hop.verified(transfer_id, generation)
        done = time.perf_counter()
        transfer = m.TransferReport(
            report.bytes,
            report.windows,
            report.pages,
            report.hidden_seconds,
            report.exposed_seconds,
        )
        self._decode.handle(m.RemoteDone(transfer_id, transfer))
        if early:
            self._decode.handle(self._ended.get(timeout=_EARLY_SECONDS))
        while self._decode.step():
            pass
        second = time.perf_counter()
        _sent(self._decode.take_outbox(), m.Finished)
        self._hop.receiver.forget(transfer_id)
        self._prefill.handle(m.PrefillEnd(transfer_id))
        return second - done, second - first


def _sent(outbox: list[m.Outbox], kind: type[Sent]) -> Sent:
    """Return the last message of type `kind` in the outbox. Raises BenchError if there is none."""
    for message in reversed(outbox):
        if isinstance(message, kind):
            return message
    raise BenchError(f"no {kind.__name__} came: give a larger --arena-mib")


_LAYOUT = CacheLayout(
    (
        LayerCache(
            "state",
            slot=(
                Part("window", (8192, 3), "bfloat16", Segments(((16, 128), (16, 128), (32, 128)))),
                Part("matrix", (32, 128, 128), "float32", Heads(32)),
            ),
        ),
    )
    * 3
    + (LayerCache("pages", page=(Part("kv", (4, 2, 64, 256), "bfloat16", Heads(4)),)),)
)
_TOKENS = 4096
_PAGES = _TOKENS // 64
_SLABS = 16
# A gigabit a second.
_WIRE_RATE = 125e6
_WIRE_REPEATS = 5
_WIRES = {
    "as it lies": WirePrecision(),
    "fp8": WirePrecision(Precision.FP8, Precision.FP8),
}


def wire_rows() -> Iterator[Row | str]:
    """Measure the gain of fewer bytes on the wire: a prefix sent unchanged and in fp8, in
    alternation in one run. Times run from the plan to the last equal digest, including encoding and
    decoding. Uses no model: the arena's numbers are random, in the shapes of four layers of 9B."""
    hops = {
        name: Hop(
            *(_random_arena(), _random_arena(), _LAYOUT, StepCounter(), _WIRE_RATE),
            WireSettings(precision),
        )
        for name, precision in _WIRES.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in hops}
    sizes: dict[str, int] = {}
    try:
        for number in range(1 + _WIRE_REPEATS):
            for name, hop in hops.items():
                taken, sizes[name] = _sent_once(hop, number)
                if number:
                    seconds[name].append(taken)
    finally:
        for hop in hops.values():
            hop.close()
    exact, encoded = (median(seconds[name]) for name in hops)
    exact_bytes, encoded_bytes = sizes.values()
    yield Row(
        f"{_TOKENS} tokens in four layers of 9B, link throttled to "
        f"{_WIRE_RATE / 1e6:g} MB/s, wire fp8",
        encoded,
        floor=encoded_bytes / _WIRE_RATE,
        others={"exact wire": exact},
        target="sooner than the exact wire",
        met=encoded < exact,
        extra={
            "of the exact wire": encoded / exact,
            "MB": encoded_bytes / 1e6,
            "exact MB": exact_bytes / 1e6,
        },
    )


def _sent_once(hop: Hop, transfer_id: int) -> tuple[float, int]:
    """Send one prefix. Returns the seconds from the plan to the last verified digest, and the bytes
    on the wire. Raises BenchError."""
    pages = tuple(page_ids(_LAYOUT, range(1, _SLABS))[:_PAGES])
    hop.open(transfer_id, transfer_id, Destination(0, pages, 0))
    begun = time.perf_counter()
    hop.sender.plan_forward(transfer_id, FinishedLayers.long_finished(0, pages, 0))
    report = hop.verified(transfer_id, transfer_id)
    taken = time.perf_counter() - begun
    hop.receiver.forget(transfer_id)
    return taken, report.bytes


def _random_arena() -> torch.Tensor:
    """Return a random arena, uint8 [slabs * slab_bytes]: bfloat16 numbers of about 1, valid also if
    read as float32."""
    numbers = torch.randn(_SLABS * _LAYOUT.slab_bytes // 2, dtype=torch.float32)
    return numbers.to(torch.bfloat16).view(torch.uint8)
