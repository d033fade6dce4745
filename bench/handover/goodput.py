"""The goodput of transfers in host memory over NIXL, beside a raw put (one contiguous write) of as
many bytes by the same agents. Also one core's digest rate over layer chunks, from memory and from
the CPU cache.

Each set of UCX transports has its own processes, because UCX reads its settings once. The raw put
is polled without pause. The transfer does the work of a node: chunks of scattered blocks and
states, digested on both sides, each with its notification. Digests need no transport.
"""

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

import numpy as np
import torch

from tasuki.bench.measure.report import Row
from tasuki.bench.measure.rig import page_ids
from tasuki.pycache._cpp_cache import StepCounter, digest_instructions
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.parts import Heads, LayerCache, Part, Whole
from tasuki.transfer.chunks.chunk import ChunkHeader, Destination, FinishedLayers
from tasuki.transfer.chunks.descriptors import Segments, chunk_bytes
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkDigester
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.node_identity import ArenaAddress
from tasuki.transfer.reports import TransferEnd, TransferSent
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.transports.base import Endpoint, Transfer, TransferState
from tasuki.transfer.transports.nixl.transport import NixlTransport

from .process import spawned
from .receiving import Place, Receiving, ReceivingPeer, receiving_peer
from .slow_link import sent_whole

SHARE = 0.8
POST_SECONDS = 100e-6
_TLS = {"tcp": "tcp,self", "shm": "posix,sysv,cma,tcp,self"}
SLABS = 64
PAGES = 96
_WARMING = 3
_PAIRS = 21
"""Number of (transfer, raw put) pairs; odd, so the median pair is a measured one."""
_SECONDS = 240.0
LAYOUT = CacheLayout(
    (
        LayerCache(
            "state",
            slot=(
                Part("window", (64, 3), "bfloat16", Whole()),
                Part("matrix", (4, 128, 128), "float32", Heads(4)),
            ),
        ),
        LayerCache("pages", page=(Part("kv", (4, 2, 64, 128), "bfloat16", Heads(4)),)),
    )
    * 4
)


@dataclass
class Measured:
    """The measurements of one UCX setting. bytes: bytes of a transfer. windows: layer chunks of a
    transfer. pairs: seconds of a transfer, seconds of the raw put compared with it. posts: host
    seconds of each chunk's post. prepared: the post's seconds before the UCX call."""

    bytes: int = 0
    windows: int = 0
    pairs: list[tuple[float, float]] = field(default_factory=list)
    posts: list[float] = field(default_factory=list)
    prepared: list[float] = field(default_factory=list)


def goodput_rows() -> Iterator[Row | str]:
    for name, tls in _TLS.items():
        measured, protocol = _in_a_process(tls)
        pairs = sorted(measured.pairs, key=lambda pair: pair[1] / pair[0])
        lowest, (seconds, raw), highest = (pairs[len(pairs) * n // 4] for n in (1, 2, 3))
        yield Row(
            f"hand-over of {measured.bytes / 1e6:.0f} MB, {name}, UCX {protocol}",
            seconds,
            raw,
            target=f">= {SHARE:.0%} of a raw put",
            met=raw / seconds >= SHARE,
            extra={
                "GB/s": measured.bytes / seconds / 1e9,
                "raw GB/s": measured.bytes / raw / 1e9,
                "windows": measured.windows,
                "pairs, of which this is the middle one": len(pairs),
                "lower quartile": lowest[1] / lowest[0],
                "upper quartile": highest[1] / highest[0],
            },
        )
        prepared = median(measured.prepared)
        yield Row(
            f"posting a window of {PAGES} pages, {name}: host time before UCX has it",
            prepared,
            target=f"<= {POST_SECONDS * 1e6:g} us",
            met=prepared <= POST_SECONDS,
            extra={"with UCX's own sending us": 1e6 * median(measured.posts)},
        )
    yield "verbs (rc): not run, this host has no RDMA NIC"


def _in_a_process(tls: str) -> tuple[Measured, str]:
    """Measure in a separate process. tls: UCX transports to use. Returns the measurement, and the
    protocols UCX reports for puts."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "UCX_TLS": tls,
            "UCX_PROTO_INFO": "used",
            "UCX_LOG_LEVEL": "info",
            "UCX_LOG_FILE": f"{folder}/%p.log",
        }
        with spawned(f"the process with UCX_TLS={tls}", _measure, settings) as process:
            measured = Measured(**json.loads(process.received(_SECONDS)))
        return measured, put_protocols(Path(folder, f"{process.pid}.log").read_text())


def put_protocols(log: str) -> str:
    """Return the protocols of puts, for example "zero-copy tcp/lo"; "unknown" without any. log:
    UCX's log with its used protocols (UCX_PROTO_INFO)."""
    used: list[str] = []
    writing = False
    for line in log.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 1:
            writing = cells[0].startswith("remote memory write")
        elif writing and len(cells) == 4 and re.fullmatch(r"[1-9]\d*", cells[0]):
            used.append(f"{cells[2]} {cells[3]}")
    return ", ".join(dict.fromkeys(used)) or "unknown"


class _TimedTransport(NixlTransport):
    """A transport measuring its own posts. measured: receives the host seconds of every post and of
    the part before the UCX call."""

    def __init__(self, measured: Measured) -> None:
        super().__init__("bench-sender")
        self._measured = measured

    def post(
        self,
        endpoint: Endpoint,
        segments: Segments,
        notification: bytes,
    ) -> Transfer:
        start = time.perf_counter()
        try:
            return super().post(endpoint, segments, notification)
        finally:
            self._measured.posts.append(time.perf_counter() - start)

    def _by_index(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return super()._by_index(*arguments)
        finally:
            self._measured.prepared.append(time.perf_counter() - start)


def _measure(channel: Connection, settings: dict[str, str]) -> None:
    """Run the measuring process: measure, and send the result over `channel`."""
    os.environ.update(settings)
    memory = np.random.default_rng(2).integers(0, 256, SLABS * LAYOUT.slab_bytes, dtype=np.uint8)
    measured = Measured()
    transport = _TimedTransport(measured)
    arena = torch.from_numpy(memory)
    plane = DataPlane.over(arena, LAYOUT, "random", transport, "nixl", "bench-sender")
    try:
        place = Place("cpu", "nixl")
        with (
            receiving_peer(LAYOUT, SLABS, place) as peer,
            receiving_peer(LAYOUT, SLABS, place) as bare,
        ):
            _alternate(plane, transport, peer, bare, measured)
    finally:
        transport.close()
    channel.send(json.dumps(asdict(measured)))


def _alternate(
    plane: DataPlane,
    transport: NixlTransport,
    peer: ReceivingPeer,
    bare: ReceivingPeer,
    measured: Measured,
) -> None:
    """Measure transfers and raw puts in alternation. peer: receiver of transfers. bare: receiver of
    raw puts; it only accepts bytes."""
    steps = StepCounter()
    settings = SenderSettings(layers_per_window=None, lease_seconds=_SECONDS, stall_seconds=60.0)
    sender = Sender(LAYOUT, [plane.source(steps)], settings)
    sender.start()
    sender.connect("peer", [ArenaAddress(peer.metadata, SLABS)])
    endpoint = transport.connect(bare.metadata)
    generator = np.random.default_rng(3)
    try:
        for run in range(_WARMING + _PAIRS):
            if run == _WARMING:
                measured.posts.clear()
                measured.prepared.clear()
                measured.pairs.clear()
            end, seconds = _hand_over(sender, steps, peer, run + 1, generator)
            measured.bytes, measured.windows = end.report.bytes, end.report.windows
            measured.pairs.append((seconds, _raw_put(transport, endpoint, bare, measured.bytes)))
    finally:
        transport.disconnect(endpoint)
        sender.stop()


def _hand_over(
    sender: Sender,
    steps: StepCounter,
    peer: ReceivingPeer,
    transfer_id: int,
    generator: np.random.Generator,
) -> tuple[TransferSent, float]:
    """Time one transfer, from the tick of the first layer's completion to the last flush. Returns
    the sender's end and the seconds. The receiver verifies the digests after the measured time."""
    sides = [_ids(generator) for _ in range(2)]
    (local, slot), (remote, target) = sides
    destination = Destination(0, remote, target)
    peer.ask(Receiving.expect, transfer_id, 1, destination)
    ended: SimpleQueue[TransferEnd] = SimpleQueue()
    sender.open(transfer_id, 1, "peer", destination, ended.put)
    sender.plan_forward(transfer_id, FinishedLayers(steps.value, 0, local, slot))
    start = time.perf_counter()
    for _ in LAYOUT.layers:
        steps.tick()
    end = sent_whole(ended)
    seconds = time.perf_counter() - start
    peer.ask(Receiving.verify, transfer_id, 1, end.report.digests)
    return end, seconds


def _raw_put(transport: NixlTransport, endpoint: Endpoint, peer: ReceivingPeer, size: int) -> float:
    """Return the seconds of one contiguous write of `size` bytes."""
    # The peer polls without pause too.
    peer.begin(Receiving.take_notes, 1)
    start = time.perf_counter()
    transfer = NixlTransport.post(
        transport, endpoint, np.array([[0, 0, size]], dtype=np.int64), b"raw"
    )
    while transport.poll(transfer) is TransferState.PENDING:
        pass
    seconds = time.perf_counter() - start
    transport.release(transfer)
    peer.answer()
    return seconds


def _ids(generator: np.random.Generator) -> tuple[tuple[int, ...], int]:
    """Return page ids and a slot id, like a cache allocates them: slabs in random order, the pages
    of a slab in order."""
    order = generator.permutation(SLABS).tolist()
    return tuple(page_ids(LAYOUT, order[1:])[:PAGES]), order[0]


_REPEATS = 21
_LAYERS = len(LAYOUT.layers)


def digest_rows() -> Iterator[Row]:
    memory = np.random.default_rng(4).integers(0, 256, SLABS * LAYOUT.slab_bytes, dtype=np.uint8)
    digester = ChunkDigester(memory, LAYOUT)
    pages = page_ids(LAYOUT, range(SLABS))
    # All layers are more than most caches hold, one layer of half the pages is a share of one.
    for where, header in (
        ("memory", ChunkHeader(0, 0, _LAYERS, 0, PAGES, False)),
        ("cache", ChunkHeader(0, _LAYERS - 1, _LAYERS, 0, PAGES // 2, False)),
    ):
        chunk = pages[: header.pages]
        size = chunk_bytes(LAYOUT, header)
        seconds = median(_digest(digester, header, chunk) for _ in range(_REPEATS))
        yield Row(
            f"digest of {size / 1e6:.1f} MB in {where}, one thread, {digest_instructions()[-1]}",
            seconds,
            extra={"GB/s": size / seconds / 1e9},
        )


def _digest(digester: ChunkDigester, header: ChunkHeader, pages: list[int]) -> float:
    start = time.perf_counter()
    digester.digest_all([ArenaChunk(1, 1, header, tuple(pages), None)])
    return time.perf_counter() - start
