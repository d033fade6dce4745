"""The rate of layer chunks of scattered blocks without an engine, from one process to another,
compared with one contiguous copy."""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
import torch

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.report import Row
from tasuki.transfer.chunks.descriptors import Segments
from tasuki.transfer.transports.base import Endpoint, Transfer, TransferState, Transport
from tasuki.transfer.transports.factory import build_transport

from .goodput import LAYOUT
from .receiving import Place, Receiving, ReceivingPeer, receiving_peer

BLOCKS = 1024
# By block size: the required share of the contiguous copy's rate.
TARGETS = {32 * 1024: 0.85, 128 * 1024: 0.92, 256 * 1024: 0.92}
_ARENA_BYTES = 4 << 30
_COPY_BYTES = 2 << 30
_WINDOWS = 32
_DEPTH = 8
_SEED = 7


def block_rows(kind: str, device: torch.device, other: torch.device) -> Iterator[Row]:
    """Yield rows with the time of one layer chunk of BLOCKS blocks at a sustained rate. kind: name
    of the transport. device, other: the sender's and the receiver's device."""
    rate = _copy_rate(device, other)
    # Any layout serves, because this moves blocks, not pages.
    slabs = _ARENA_BYTES // LAYOUT.slab_bytes
    with receiving_peer(LAYOUT, slabs, Place(str(other), kind)) as peer:
        size = slabs * LAYOUT.slab_bytes
        memory = torch.randint(0, 256, (size,), dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
        transport = build_transport(kind, "bench-sender", device)
        transport.register(memory.data_ptr(), memory.nbytes)
        endpoint = transport.connect(peer.metadata)
        try:
            for size, share in TARGETS.items():
                chunks = [_scattered(size, memory.nbytes, n) for n in range(_WINDOWS)]
                _sustained(transport, endpoint, chunks[:_DEPTH], peer)
                seconds, posting = _sustained(transport, endpoint, chunks, peer)
                # Alone, because chunks in flight together may have the same targets.
                _sustained(transport, endpoint, chunks[:1], peer)
                _check(memory, chunks[0], peer)
                floor = BLOCKS * size / rate
                asked = kind == "peer_copy"
                yield Row(
                    f"{BLOCKS} x {size >> 10} KiB, two processes, {kind}",
                    seconds,
                    floor,
                    target=f">= {share:.0%} of contiguous" if asked else "",
                    met=floor / seconds >= share if asked else None,
                    extra={
                        "GB/s": BLOCKS * size / seconds / 1e9,
                        "contiguous GB/s": rate / 1e9,
                        "post us": posting * 1e6,
                    },
                )
        finally:
            transport.disconnect(endpoint)
            transport.close()


def _copy_rate(device: torch.device, other: torch.device) -> float:
    """Return the bytes a second of one contiguous copy between the two GPUs, by this process."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=other)
    seconds = []
    for _ in range(6):
        torch.cuda.synchronize(device)
        torch.cuda.synchronize(other)
        start = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize(device)
        torch.cuda.synchronize(other)
        seconds.append(time.perf_counter() - start)
    return _COPY_BYTES / median(seconds[1:])


def _sustained(
    transport: Transport,
    endpoint: Endpoint,
    chunks: list[Segments],
    peer: ReceivingPeer,
) -> tuple[float, float]:
    """Return the seconds of a layer chunk with _DEPTH chunks in flight, and the median host seconds
    of posting one chunk."""
    peer.begin(Receiving.take_notes, len(chunks))
    posting = []
    flying: list[Transfer] = []
    start = time.perf_counter()
    for number, segments in enumerate(chunks):
        if len(flying) == _DEPTH:
            _finish(transport, flying.pop(0))
        before = time.perf_counter()
        flying.append(transport.post(endpoint, segments, b"window %d" % number))
        posting.append(time.perf_counter() - before)
    for transfer in flying:
        _finish(transport, transfer)
    seconds = (time.perf_counter() - start) / len(chunks)
    peer.answer()
    return seconds, median(posting)


def _finish(transport: Transport, transfer: Transfer) -> None:
    while transport.poll(transfer) is TransferState.PENDING:
        pass
    transport.release(transfer)


def _check(memory: torch.Tensor, segments: Segments, peer: ReceivingPeer) -> None:
    """Compare some received blocks of a layer chunk with the sent ones. Raises BenchError for a
    difference."""
    words = memory.view(torch.int64)
    for local, remote, length in (segments[:: BLOCKS // 8] // 8).tolist():
        sent = int(words[local : local + length].sum().item())
        if peer.ask(Receiving.sum_words, remote, remote + length) != sent:
            raise BenchError("a block arrived with other bytes than were sent")


def _scattered(size: int, arena: int, seed: int) -> Segments:
    """Return the segments of BLOCKS blocks, [BLOCKS, 3] int64: source byte, target byte, size. The
    places are random, so neighbours on one side are rarely neighbours on the other. arena: bytes of
    the memory on each side."""
    generator = np.random.default_rng(_SEED + seed)
    columns = [generator.permutation(arena // size)[:BLOCKS] * size for _ in range(2)]
    return np.stack([*columns, np.full(BLOCKS, size)], axis=1).astype(np.int64)
