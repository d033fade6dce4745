"""A prefill engine transferring its prompts to a receiving process, stepped by the bench.

Measures the engine's own transfer: layer chunks are sent after their layers' events while the
forward runs. A pipe replaces the control connection here; `nodes` has the real one.
"""

import threading
import time
from dataclasses import dataclass
from itertools import count
from queue import SimpleQueue
from typing import Any, cast

import numpy as np

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.rig import page_ids, random_parts
from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import build_cache, build_prefill_engine
from tasuki.engine.config import EngineConfig
from tasuki.model.config import ModelConfig
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.keys import Keys
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.chunks.descriptors import Segments
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.node_identity import ArenaAddress
from tasuki.transfer.reports import ChunkTiming, SendReport, TransferEnd
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.transports.base import Endpoint, Transfer, TransferState, Transport
from tasuki.transfer.transports.factory import build_transport

from .receiving import Receiving, ReceivingPeer
from .slow_link import sent_whole


@dataclass(eq=False)
class _Held(Transfer):
    real: Transfer
    due: float


class ThrottledTransport:
    """A transport limited to a chosen rate: no transfer completes earlier than on a link of this
    rate. bytes_per_second: None disables the limit.

    The throttle is inside the sender, and rows using it are marked. It needs a transport with a
    chunk's peer in poll()'s result, like peer_copy: then bytes arriving early are not read. A
    Transport except for its static type: methods not defined here are the inner transport's. Owns
    the simulated link's clock. Thread rule: any transport's.
    """

    def __init__(self, inner: Transport, bytes_per_second: float | None = None) -> None:
        self._inner = inner
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def post(self, endpoint: Endpoint, segments: Segments, notification: bytes) -> Transfer:
        transfer = self._inner.post(endpoint, segments, notification)
        rate = self.bytes_per_second
        if rate is None:
            return transfer
        with self._lock:
            begins = max(time.monotonic(), self._free_at)
            self._free_at = begins + float(segments[:, 2].sum()) / rate
            return _Held(transfer, self._free_at)

    def poll(self, transfer: Transfer) -> TransferState:
        if not isinstance(transfer, _Held):
            return self._inner.poll(transfer)
        if time.monotonic() < transfer.due:
            return TransferState.PENDING
        return self._inner.poll(transfer.real)

    def release(self, transfer: Transfer) -> None:
        self._inner.release(transfer.real if isinstance(transfer, _Held) else transfer)


_PEER = "receiver"
_LEASE_SECONDS = 3600.0


@dataclass(frozen=True)
class HandedOver:
    """The times of one transfer. forward: seconds from the destination's arrival to the first
    token's arrival. verified: seconds from the last layer's event to the receiver's confirmation of
    all digests."""

    forward: float
    verified: float
    report: SendReport

    @property
    def last_chunk(self) -> ChunkTiming:
        return max(self.report.timeline, key=lambda chunk: chunk.sequence)


class PrefillRig:
    """One prefill engine over random weights, with a receiver. REQUIRES: peer has an arena of
    `slabs` slabs of the same layout. Single-threaded except for the sender's thread."""

    def __init__(
        self, model: ModelConfig, config: EngineConfig, kind: str, peer: ReceivingPeer, slabs: int
    ) -> None:
        self._peer = peer
        parts = random_parts(model, config)
        self.link = ThrottledTransport(
            build_transport(kind, "bench-sender", parts.arena.bytes.device)
        )
        link = cast(Transport, self.link)
        plane = DataPlane.over(
            parts.arena.bytes, parts.layout, "random", link, kind, "bench-sender"
        )
        self.layout = parts.layout
        self._steps = parts.steps
        self._slabs = slabs
        self._sender = Sender(
            parts.layout,
            [plane.source(parts.steps)],
            SenderSettings(layers_per_window=None, lease_seconds=_LEASE_SECONDS),
        )
        cache = build_cache(config, parts)
        self._engine = build_prefill_engine(config, parts, cache, self._sender)
        self._engine.prepare()
        self._sender.start()
        self._sender.connect(_PEER, [ArenaAddress(peer.metadata, slabs)])
        self._transfers = count(1)
        self._vocab = model.vocab
        self._generator = np.random.default_rng(3)

    def prompt(self, tokens: int) -> list[int]:
        drawn: list[int] = self._generator.integers(0, self._vocab, tokens).tolist()
        return drawn

    def hand_over(self, prompt: list[int], held_pages: int = 0) -> HandedOver:
        """Prefill and transfer the prompt. held_pages: pages of the prompt's start already held by
        the receiver."""
        transfer_id, generation = m.TransferId(next(self._transfers)), 1
        destination = self._destination(len(prompt), held_pages)
        self._peer.ask(Receiving.expect, transfer_id, generation, destination)
        sampling = SamplingParams(max_new_tokens=1, ignore_eos=True)
        transfer_request = m.TransferRequest(
            transfer_id, generation, held_pages * PAGE_TOKENS, sampling, b""
        )
        keys = Keys(np.asarray(prompt, dtype=np.int32))
        self._engine.handle(m.PrefillReserve(transfer_request, keys))
        self._step_until(m.PrefillAccepted)
        ended: SimpleQueue[TransferEnd] = SimpleQueue()
        self._sender.open(transfer_id, generation, _PEER, destination, ended.put)
        grant = m.Grant(transfer_id, generation, held_pages, destination.pages, destination.slot)
        begun = time.perf_counter()
        self._engine.handle(m.PrefillStart(grant))
        self._step_until(m.PrefillToken)
        forward = time.perf_counter() - begun
        end = sent_whole(ended)
        self._peer.ask(Receiving.verify, transfer_id, generation, end.report.digests)
        last = self._steps.time_of(self._steps.value)
        assert last is not None
        verified = time.monotonic() - last
        self._engine.handle(m.PrefillEnd(transfer_id))
        self._engine.step()
        self._engine.take_outbox()
        return HandedOver(forward, verified, end.report)

    def flush(self) -> None:
        """Forget every cached prefix. REQUIRES: no request runs."""
        self._engine.handle(m.FlushCache(0))
        self._engine.take_outbox()

    def close(self) -> None:
        self._sender.stop()
        self.link.close()

    def _destination(self, tokens: int, held_pages: int) -> Destination:
        """Return a destination of slabs from the arena's start: one slab for the state, whole slabs
        for the pages after it."""
        layout, pages = self.layout, -(-tokens // PAGE_TOKENS) - held_pages
        ids = page_ids(layout, range(1, 2 + pages // layout.pages_per_slab))[:pages]
        # In no order, like the pages of an arena after some use.
        ids = self._generator.permutation(ids).tolist()
        return Destination(held_pages, tuple(ids), 0)

    def _step_until(self, kind: type) -> None:
        """Step the engine until it sends a message of type `kind`; return nothing. Raises
        BenchError if the engine rejects the prompt, or sends none within 300 s."""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            self._engine.step()
            for message in self._engine.take_outbox():
                if isinstance(message, kind):
                    return
                if isinstance(message, m.PrefillRefused):
                    raise BenchError(f"the engine refuses: {message.error.message}")
        raise BenchError(f"the engine never sent {kind.__name__}")


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)
