"""Record of one incoming transfer, and the layer barrier for a computation on its arriving bytes.

Owns the record of one transfer's arrived chunks. Thread rule of the barrier: one thread waits, any
thread closes.
"""

import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.chunks.chunk import ChunkHeader, Destination
from tasuki.transfer.errors import ChunksMissing, DigestMismatch, OutOfBounds
from tasuki.transfer.reports import KEPT_CHUNKS, ArrivedChunk, BarrierWait, ChunkDigest
from tasuki.utils.signatures import Clock


class IncomingTransfer:
    """Record of one transfer on the receiving side: arrived layer chunks, their digests, and the
    missing part.

    Owns the record, and wakes the threads waiting for it. Does not know transports or clocks:
    Receiver calls it under its lock. Invariant: a chunk counts once, even if it is announced
    several times.
    """

    def __init__(
        self,
        transfer_id: int,
        generation: int,
        destination: Destination,
        layout: CacheLayout,
        changed: threading.Condition,
    ) -> None:
        """changed: condition over the receiver's lock, notified when a layer chunk of this transfer
        arrives, or when the transfer is forgotten."""
        self.changed = changed
        self.transfer_id = transfer_id
        self.generation = generation
        self.destination = destination
        self.forgotten = False
        """True once no more chunks of the transfer are counted."""
        self.sealed = False
        """True once the transfer is verified: later chunks are no part of it."""
        self._spoiled: int | None = None
        self._layers = layout.layers
        self._paged = [region.layer for region in layout.regions]
        self._arrived: dict[int, ChunkDigest] = {}
        self.arrivals: deque[ArrivedChunk] = deque(maxlen=KEPT_CHUNKS)
        self.waits: deque[BarrierWait] = deque(maxlen=KEPT_CHUNKS)
        self._pages = np.zeros((len(self._layers), len(destination.pages)), dtype=np.bool_)
        # Without a granted slot no state is awaited.
        self._states = np.full(len(self._layers), destination.slot is None, dtype=np.bool_)

    @property
    def chunks_arrived(self) -> int:
        return len(self._arrived)

    def has(self, header: ChunkHeader) -> bool:
        return header.sequence in self._arrived

    def pages_of(self, header: ChunkHeader) -> tuple[int, ...]:
        """Return the page ids filled by the chunk. Raises OutOfBounds if the header names layers,
        pages or a state outside the destination."""
        granted = self.destination
        first, end = header.first_page, header.first_page + header.pages
        if not 0 <= header.first_layer < header.end_layer <= len(self._layers):
            raise OutOfBounds(
                f"transfer {self.transfer_id}: layer chunk {header.sequence} names layers "
                f"{header.first_layer} to {header.end_layer} of {len(self._layers)}"
            )
        if header.carries_state and granted.slot is None:
            raise OutOfBounds(
                f"transfer {self.transfer_id}: layer chunk {header.sequence} carries a state, "
                "for which no slot is granted"
            )
        if header.pages and not granted.first_page <= first <= end <= granted.end_page:
            raise OutOfBounds(
                f"transfer {self.transfer_id}: layer chunk {header.sequence} names pages {first} "
                f"to {end}, granted are {granted.first_page} to {granted.end_page}"
            )
        return granted.pages[first - granted.first_page : end - granted.first_page]

    def arrive(
        self, header: ChunkHeader, digest: int, landed_at: float, verified_at: float
    ) -> None:
        """Record an arrived chunk. landed_at, verified_at: of ArrivedChunk. REQUIRES:
        pages_of(header) did not raise, and has(header) is False."""
        self._arrived[header.sequence] = ChunkDigest(header, digest)
        self.arrivals.append(ArrivedChunk(header.sequence, landed_at, verified_at))
        first = header.first_page - self.destination.first_page
        layers = slice(header.first_layer, header.end_layer)
        if header.pages:
            self._pages[layers, first : first + header.pages] = True
        self._states[layers] |= header.carries_state

    def layer_arrived(self, layer: int) -> bool:
        """Return True if all bytes of the layer have arrived: its pages and its final state, as far
        as the layer has them."""
        if self._layers[layer].page:
            return bool(self._pages[layer].all()) and bool(self._states[layer])
        return bool(self._states[layer])

    def spoil(self, header: ChunkHeader) -> None:
        """Make verification fail: a decoded chunk was sent again, and may be overwritten."""
        self._spoiled = header.sequence

    def missing(self, sent: Sequence[ChunkDigest]) -> list[int]:
        """Return the sequence numbers of the chunks in `sent` not yet arrived."""
        return [w.header.sequence for w in sent if w.header.sequence not in self._arrived]

    def wait_for(self, sent: Sequence[ChunkDigest], timeout: float) -> None:
        """Wait until all chunks in `sent` have arrived, the transfer is forgotten, or `timeout`
        seconds are over. REQUIRES: the lock is held."""
        self.changed.wait_for(lambda: self.forgotten or not self.missing(sent), timeout)

    def verify(self, sent: Sequence[ChunkDigest]) -> None:
        """Raise ChunksMissing or DigestMismatch unless exactly the chunks in `sent` arrived,
        unchanged, and fill the whole destination. Success seals the transfer."""
        missing = self.missing(sent)
        if missing:
            raise ChunksMissing(
                f"transfer {self.transfer_id}: {len(missing)} of {len(sent)} layer chunks have not "
                f"arrived, first {missing[0]}"
            )
        for chunk in sent:
            arrived = self._arrived[chunk.header.sequence]
            if arrived != chunk:
                raise DigestMismatch(
                    f"transfer {self.transfer_id}: layer chunk {chunk.header.sequence} (layers "
                    f"{chunk.header.first_layer} to {chunk.header.end_layer}) arrived with digest "
                    f"{arrived.digest:#x}, sent was {chunk.digest:#x}"
                )
        if len(self._arrived) != len(sent):
            raise DigestMismatch(
                f"transfer {self.transfer_id}: {len(self._arrived)} layer chunks arrived, the "
                f"sender names {len(sent)}"
            )
        if self._spoiled is not None:
            raise DigestMismatch(
                f"transfer {self.transfer_id}: layer chunk {self._spoiled} came again after it "
                "had been decoded"
            )
        # Check all layers at once, because a check of each would cost more than everything else
        # here.
        if not (self._states.all() and self._pages[self._paged].all()):
            layer = next(i for i in range(len(self._layers)) if not self.layer_arrived(i))
            raise ChunksMissing(
                f"transfer {self.transfer_id}: layer {layer} was not sent completely"
            )
        self.sealed = True


class LayerBarrier:
    """Layer barrier of one transfer: a computation on a still arriving prompt waits here for each
    layer.

    Owns only its closed flag; shares the transfer's record with the receiver, under the receiver's
    lock. Thread rule: one thread waits, any thread closes.

    Invariants: layer l is open only after all of its bytes have arrived and were digested in the
    arena. From then on the sender writes nothing of layer l, and the waiting computation may write
    next to it. The barrier of a forgotten transfer stays open for the arrived layers, and never
    opens for the others.
    """

    def __init__(self, incoming: IncomingTransfer, clock: Clock) -> None:
        self._incoming = incoming
        self._changed = incoming.changed
        self._clock = clock
        self._closed = False

    def wait(self, layer: int) -> bool:
        """Block until all of the transfer's bytes of `layer` have arrived, and return True. Return
        False if they never will: the transfer has ended, or the barrier is closed."""
        with self._changed:
            if not self._decided(layer):
                began = self._clock()
                self._changed.wait_for(lambda: self._decided(layer))
                self._incoming.waits.append(BarrierWait(layer, began, self._clock()))
            return not self._closed and self._incoming.layer_arrived(layer)

    def _decided(self, layer: int) -> bool:
        over = self._closed or self._incoming.forgotten
        return over or self._incoming.layer_arrived(layer)

    def close(self) -> None:
        """Close the barrier: it lets no thread through, even for arrived layers. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
