"""The layer barrier of one room: who computes on a prompt that is still landing waits here.

Owns nothing but whether it was closed; shares the room's record with the receiver, under the
receiver's lock. Thread rule: one thread waits, any thread closes.
Invariants: layer l is open only after all that the room brings of l has landed and was digested as
it lies in the arena, so that from then on the sender writes nothing of l any more and who waited
may write beside it; a barrier whose room is forgotten stays open for the layers that had landed,
and never opens for the others.
"""

from collections.abc import Callable

from tasuki.transfer.timeline import BarrierWait

from .incoming_room import IncomingRoom


class LayerBarrier:
    def __init__(self, incoming: IncomingRoom, clock: Callable[[], float]) -> None:
        self._incoming = incoming
        self._changed = incoming.changed
        self._clock = clock
        self._closed = False

    def wait(self, layer: int) -> bool:
        """Block until all the room brings of `layer` is here; False if it never will be: the room
        is over, or the barrier closed."""
        with self._changed:
            if not self._decided(layer):
                began = self._clock()
                self._changed.wait_for(lambda: self._decided(layer))
                self._incoming.waits.append(BarrierWait(layer, began, self._clock()))
            return not self._closed and self._incoming.layer_landed(layer)

    def _decided(self, layer: int) -> bool:
        over = self._closed or self._incoming.forgotten
        return over or self._incoming.layer_landed(layer)

    def close(self) -> None:
        """Let nobody through any more, whatever has landed. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
