"""What more host memory would have saved of a trace: it is replayed again for each size.

Pure.
"""

from collections.abc import Callable, Sequence
from typing import Any

from .errors import ReplayError
from .tiers import Tiers


def more_host(text: str) -> tuple[float, ...]:
    """`256,1024`: GiB beside those there are. Raises ReplayError naming what is wrong."""
    try:
        sizes = tuple(float(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or not all(0 < size < 1 << 20 for size in sizes):
        raise ReplayError(
            f"--more-host {text}: give sizes above 0 and below 2^20, GiB, as 256,1024"
        )
    return sizes


def with_more_host(tiers: Tiers, gib: float) -> Tiers:
    """Where there is no host memory, so much of it."""
    host, *lower = tiers.below or (0.0,)
    return Tiers(tiers.arena, (host + gib, *lower), tiers.disk_write_budget)


def what_if(
    result: dict[str, Any],
    tiers: Tiers,
    sizes: Sequence[float],
    replayed: Callable[[Tiers], dict[str, Any]],
) -> list[dict[str, float]]:
    """By size: points of prefill FLOPs and of prompt tokens that would have been saved beyond
    `result`, which is of these tiers."""
    found = []
    for gib in sizes:
        other = replayed(with_more_host(tiers, gib))
        found.append(
            {
                "more_host_gib": gib,
                "flops_points": 100 * (other["flops_saved"] - result["flops_saved"]),
                "token_points": 100 * (other["token_hit"] - result["token_hit"]),
            }
        )
    return found


def what_if_text(found: Sequence[dict[str, float]]) -> str:
    """Appended to the replay's own table."""
    return "".join(
        f"  +{each['more_host_gib']:g} GiB host would recover {each['flops_points']:.1f} points of "
        f"prefill FLOPs, {each['token_points']:.1f} of prompt tokens\n"
        for each in found
    )
