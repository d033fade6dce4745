"""What a load from a tier below the arena changed of a prompt's hit.

Pure. Invariant: usable + causes stay the prompt.
"""

from dataclasses import replace

from tasuki.engine.messages import HitBreakdown
from tasuki.engine.messages.evictions import CAUSES_IN_ORDER, LOAD_FAILED

HOST = "host"
"""The name of the tier in host memory."""


def with_loaded(hit: HitBreakdown, before: int) -> HitBreakdown:
    """Of a prompt whose load has landed. before: tokens that were usable without it."""
    tokens = hit.usable_tokens - before
    return replace(hit, loaded={HOST: tokens}) if tokens > 0 else hit


def with_failed(hit: HitBreakdown, boundary: int | None) -> HitBreakdown:
    """boundary: tokens that a load was to make usable, before the prompt was looked up anew; None
    where none failed. Whatever the tree says of them now, they were lost by that."""
    if boundary is None:
        return hit
    left = max(0, min(boundary, hit.prompt_tokens) - hit.usable_tokens)
    causes = dict(hit.causes)
    failed = 0
    # The tree lays its causes over a prompt in this order, from the last usable token on.
    for cause in CAUSES_IN_ORDER:
        taken = min(left, causes.get(cause, 0))
        if taken:
            causes[cause] -= taken
            left -= taken
            failed += taken
    in_pages = None if hit.in_pages is None else with_failed(hit.in_pages, boundary)
    if failed:
        causes[LOAD_FAILED] = failed
    return replace(hit, causes=causes, in_pages=in_pages)
