"""How many layers a window takes, from what each has to send and what the link costs.

Pure functions; knows no rooms and no memory. A run is (first layer, end layer).
Invariants of every list of runs: each layer is in exactly one, in order; an adaptive run that has
more than one layer with bytes holds at most the budget; of a prompt's last forward, at most half of
what that had left to send, so that the last window, which nothing hides, is one layer, but also
more than the budget where all before its last layer is at most half of it: states that are small
beside a window's own cost go along with pages. Where many prompts end in one forward their windows
are fewer, the last one too. Bytes never wait for a layer behind them that has
none.
"""

from collections.abc import Callable, Sequence

from tasuki.transfer.errors import WindowPlanError
from tasuki.transfer.windows.descriptors import UnitSizes, layer_bytes
from tasuki.transfer.windows.window import FinishedLayers, Run

from .link import LinkSpeed

_LEAST_SECONDS = 0.00025
"""A window of less wire time gains nothing by being smaller."""
_FOLLOWED_SECONDS = 0.01
"""The same of a forward that another follows: nobody waits for its last window. A link between GPUs
that is awake all the time slows a forward by 2% (docs/hand-over.md), so it gets its bytes in few
bursts."""
_MANY_ENDING = 4
_MANY_SECONDS = 0.0005
"""A window of less wire time is not worth the work that it is for the processors of both nodes
where that many prompts end in one forward, each with windows of its own for the same layers."""
_MANY_SHARE = 3
"""And it holds at most this part of what there is to send, so that the most of it stays hidden."""
_PROBE = 2.0
"""Times the mean so far: sizes that are all the same do not show latency beside speed."""


def fixed_runs(layers: int, layers_per_window: int) -> list[Run]:
    """Raises WindowPlanError unless layers_per_window is at least 1."""
    if layers_per_window < 1:
        raise WindowPlanError(f"layers_per_window must be at least 1, not {layers_per_window}")
    return [
        (first, min(first + layers_per_window, layers))
        for first in range(0, layers, layers_per_window)
    ]


def budget(cost: LinkSpeed | None, least_seconds: float = _LEAST_SECONDS) -> int:
    """Bytes that one window may have. As long on the wire as a window costs without bytes, so that
    at most half of a link is spent on windows themselves, or least_seconds: much on a fast link,
    little on a slow one; 0, one layer a window, where nothing is known."""
    if cost is None:
        return 0
    if not cost.spread:
        return int(_PROBE * cost.mean_bytes)
    return int(max(cost.window_seconds, least_seconds) / cost.byte_seconds)


def window_runs(
    layout: UnitSizes, plan: FinishedLayers, layers_per_window: int | None, cost: LinkSpeed | None
) -> list[Run]:
    """Of one forward: fixed where layers_per_window is given, else by the cost of its link."""
    layers = len(layout.layer_kinds)
    if layers_per_window is not None:
        return fixed_runs(layers, layers_per_window)
    pages, carries_state = len(plan.local_pages), plan.state_slot is not None
    sizes = [layer_bytes(layout, layer, pages, carries_state) for layer in range(layers)]
    if carries_state and not plan.is_long_finished:
        return last_runs(sizes, budget(cost), _least(cost, plan.ending))
    return followed_runs(sizes, budget(cost, _FOLLOWED_SECONDS))


def _least(cost: LinkSpeed | None, ending: int) -> int:
    """Bytes that no window of a forward in which so many prompts end need be smaller than."""
    if cost is None or ending < _MANY_ENDING:
        return 0
    return int(_MANY_SECONDS / cost.byte_seconds)


def last_runs(layer_bytes: Sequence[int], most: int, least: int = 0) -> list[Run]:
    """Of a prompt's last forward. layer_bytes: what each layer has to send; most: budget(). least:
    bytes that a window need not be smaller than, up to a part of all."""
    least = min(least, sum(layer_bytes) // _MANY_SHARE)

    def joins(left: int, size: int, more: int) -> bool:
        # What is small beside a window's own cost goes along with the next layer, however large.
        fits = size + more <= left // 2 and (size + more <= most or size <= most // 2)
        return fits or size + more <= least

    return _runs(layer_bytes, joins)


def followed_runs(layer_bytes: Sequence[int], most: int) -> list[Run]:
    """Of a forward that another of the prompt follows, or of what was finished before: nothing
    hides its last window, and nothing is gained by a small one."""
    return _runs(layer_bytes, lambda left, size, more: size + more <= most)


def _runs(layer_bytes: Sequence[int], joins: Callable[[int, int, int], bool]) -> list[Run]:
    """joins: whether a window of some bytes takes more in, from the bytes that were left when it
    began, its own, and those of the next layer."""
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
    """The end of the shortest run from `first` that has bytes; the last layer's where none has."""
    for layer in range(first, len(layer_bytes)):
        if layer_bytes[layer]:
            return layer + 1
    return len(layer_bytes)
