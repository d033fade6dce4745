"""Shares and percentiles of a histogram's buckets. Pure.

A node exports how many observations were at most as long as each bound; between two bounds they are
taken to lie evenly, as Prometheus takes them.
"""

import math
from collections.abc import Iterable, Mapping

from .exposition_text import Samples

Buckets = dict[float, float]
"""Observations of at most each bound; the last bound is infinite."""


def buckets_of(samples: Samples, name: str) -> Buckets:
    """Of the histogram of that name, whatever its labels."""
    sums: Buckets = {}
    for buckets in buckets_by(samples, name, "").values():
        add_buckets(sums, buckets)
    return sums


def buckets_by(samples: Samples, name: str, label: str) -> dict[str, Buckets]:
    """Of the histogram of that name, by the value of one label; all under the empty one where it
    has none such."""
    found: dict[str, Buckets] = {}
    for labels, count in samples.get(f"{name}_bucket", {}).items():
        named = dict(labels)
        bound = _bound(named.get("le", ""))
        if bound is not None:
            sums = found.setdefault(named.get(label, ""), {})
            sums[bound] = sums.get(bound, 0.0) + count
    return {value: dict(sorted(sums.items())) for value, sums in found.items()}


def add_buckets(sums: Buckets, more: Mapping[float, float]) -> None:
    """To `sums`. REQUIRES: the same bounds, or none in one of them."""
    for bound, count in more.items():
        sums[bound] = sums.get(bound, 0.0) + count


def together(parts: Iterable[Mapping[float, float]]) -> Buckets:
    """Of all. REQUIRES: as add_buckets()."""
    sums: Buckets = {}
    for part in parts:
        add_buckets(sums, part)
    return dict(sorted(sums.items()))


def observed(buckets: Mapping[float, float]) -> float:
    """How many."""
    return max(buckets.values(), default=0.0)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """The value that `share` of the observations do not exceed; None without any. An observation
    over the last finite bound counts as that bound."""
    rank = share * observed(buckets)
    if rank <= 0:
        return None
    low = below = 0.0
    for bound, count in buckets.items():
        if count >= rank:
            return low if math.isinf(bound) else _between(low, bound, rank - below, count - below)
        low, below = bound, count
    return low


def share_within(buckets: Mapping[float, float], target: float) -> float | None:
    """How much of all is at most `target`, from 0 to 1; None without any."""
    whole = observed(buckets)
    if whole <= 0:
        return None
    low = below = 0.0
    for bound, count in buckets.items():
        if target < bound:
            part = 0.0 if math.isinf(bound) else (target - low) / (bound - low)
            return (below + (count - below) * part) / whole
        low, below = bound, count
    return 1.0


def _between(low: float, high: float, rank: float, count: float) -> float:
    return low + (high - low) * (rank / count if count else 1.0)


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound
