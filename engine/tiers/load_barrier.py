"""The layer barrier of one load: who computes behind it waits here for what a layer reads.

Thread rule: the thread that copies opens it, one thread waits, any thread closes it.
Invariants: layer l is open once all that the load brings of it has been copied to the arena; that
it is what was written shows only at the load's end, so what was computed behind it counts for
nothing before that. Whoever waits is let go: the load lands, or whoever began it gives it up as
late, and closes this.
"""

import threading


class LoadBarrier:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._layers = 0
        self._closed = False

    def landed(self, layers: int) -> None:
        """So many, from the first on."""
        with self._changed:
            if layers > self._layers:
                self._layers = layers
                self._changed.notify_all()

    def wait(self, layer: int) -> bool:
        """Block until the layer is open; False if it never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or layer < self._layers)
            return not self._closed

    def close(self) -> None:
        """Let nobody through any more, whatever has landed. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
