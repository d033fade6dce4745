"""Number of layers in each layer chunk, from each layer's bytes and the link's cost.

Pure functions; knows no transfers and no memory. A run is (first layer, end layer), the layers of
one chunk.

Invariants of every list of runs: each layer is in exactly one run, in order. An adaptive run with
more than one layer with bytes holds at most the budget. In a prompt's last forward it also holds at
most half of the bytes left. So the last chunk, not hidden behind any computation, is one layer. In
such a forward a run may exceed the budget if its bytes before its last layer are at most half the
budget. So small states are sent together with pages. If many prompts end in one forward, their
chunks are fewer, the last chunk too. Bytes never wait for a later layer without bytes.
"""

from collections.abc import Callable, Sequence

from tasuki.transfer.chunks.chunk import FinishedLayers, Run
from tasuki.transfer.chunks.descriptors import UnitSizes, layer_bytes
from tasuki.transfer.errors import ChunkPlanError

from .link import LinkSpeed

_LEAST_SECONDS = 0.00025
"""Least useful time of a chunk on the wire, in seconds: a smaller chunk gains nothing."""
_FOLLOWED_SECONDS = 0.01
"""Least useful time of a chunk on the wire, in seconds, for a forward followed by another: its last
chunk delays no answer. An always active link between GPUs slows a forward by 2%
(docs/hand-over.md), so it gets its bytes in few bursts."""
_MANY_ENDING = 4
_MANY_SECONDS = 0.0005
"""Least useful time of a chunk on the wire, in seconds, if at least _MANY_ENDING prompts end in one
forward. Each prompt has chunks of its own for the same layers, and smaller chunks cost both nodes'
processors too much work."""
_MANY_SHARE = 3
"""Divisor of a prompt's bytes to send: with many ending prompts, a chunk holds at most this part.
So most bytes stay hidden behind the forward's compute."""
_PROBE = 2.0
"""Factor on the mean chunk size, to learn latency and speed from chunks of two sizes."""


def fixed_runs(layers: int, layers_per_window: int) -> list[Run]:
    """Return runs (first layer, end layer) of layers_per_window layers each; the last may be
    shorter. Raises ChunkPlanError if layers_per_window is below 1."""
    if layers_per_window < 1:
        raise ChunkPlanError(f"layers_per_window must be at least 1, not {layers_per_window}")
    return [
        (first, min(first + layers_per_window, layers))
        for first in range(0, layers, layers_per_window)
    ]


def budget(cost: LinkSpeed | None, least_seconds: float = _LEAST_SECONDS) -> int:
    """Return the most bytes for one chunk.

    A chunk of this size takes as long on the wire as the fixed time of a chunk without bytes. So
    the fixed times cost at most half of a link. If `least_seconds` is longer, the chunk takes this
    time. The result is 0, so one layer a chunk, if the link's cost is unknown. If only chunks of
    one size were measured, the result is _PROBE times their mean size.
    """
    if cost is None:
        return 0
    if not cost.spread:
        return int(_PROBE * cost.mean_bytes)
    return int(max(cost.chunk_seconds, least_seconds) / cost.byte_seconds)


def chunk_runs(
    layout: UnitSizes, plan: FinishedLayers, layers_per_window: int | None, cost: LinkSpeed | None
) -> list[Run]:
    """Return the runs (first layer, end layer) of one forward's chunks: of fixed length if
    layers_per_window is given, else by the link's cost."""
    layers = len(layout.layers)
    if layers_per_window is not None:
        return fixed_runs(layers, layers_per_window)
    pages, carries_state = len(plan.local_pages), plan.state_slot is not None
    sizes = [layer_bytes(layout, layer, pages, carries_state) for layer in range(layers)]
    if carries_state and not plan.is_long_finished:
        return last_runs(sizes, budget(cost), _least(cost, plan.ending))
    return followed_runs(sizes, budget(cost, _FOLLOWED_SECONDS))


def _least(cost: LinkSpeed | None, ending: int) -> int:
    """Return the least useful bytes of a chunk if `ending` prompts end; 0 if they are few."""
    if cost is None or ending < _MANY_ENDING:
        return 0
    return int(_MANY_SECONDS / cost.byte_seconds)


def last_runs(layer_bytes: Sequence[int], most: int, least: int = 0) -> list[Run]:
    """Return the runs of a prompt's last forward. layer_bytes: bytes of each layer. most: result of
    budget(). least: bytes always allowed in a chunk, at most one part in _MANY_SHARE of all."""
    least = min(least, sum(layer_bytes) // _MANY_SHARE)

    def joins(left: int, size: int, more: int) -> bool:
        # A size small beside a chunk's own cost is sent together with the next layer, however
        # large.
        fits = size + more <= left // 2 and (size + more <= most or size <= most // 2)
        return fits or size + more <= least

    return _runs(layer_bytes, joins)


def followed_runs(layer_bytes: Sequence[int], most: int) -> list[Run]:
    """Return the runs of a forward followed by another of the same prompt, or of layers finished
    long ago: a small last chunk gains nothing. most: bytes allowed for a chunk."""
    return _runs(layer_bytes, lambda left, size, more: size + more <= most)


def _runs(layer_bytes: Sequence[int], joins: Callable[[int, int, int], bool]) -> list[Run]:
    """Return the runs (first layer, end layer). joins: returns True if a chunk also takes the next
    layer with bytes. It takes three byte counts: the bytes left when the chunk began, the chunk's
    own, and the next layer's."""
    runs: list[Run] = []
    left = sum(layer_bytes)
    first = 0
    while first < len(layer_bytes):
        end = _next_with_bytes(layer_bytes, first)
        size = sum(layer_bytes[first:end])
        while size and end < len(layer_bytes):
            further = _next_with_bytes(layer_bytes, end)
            more = sum(layer_bytes[end:further])
            if not more or not joins(left, size, more):
                break
            end, size = further, size + more
        runs.append((first, end))
        left -= size
        first = end
    return runs


def _next_with_bytes(layer_bytes: Sequence[int], first: int) -> int:
    """Return the end of the shortest run of layers from `first` with any bytes; the number of
    layers if none of them has bytes."""
    for layer in range(first, len(layer_bytes)):
        if layer_bytes[layer]:
            return layer + 1
    return len(layer_bytes)
