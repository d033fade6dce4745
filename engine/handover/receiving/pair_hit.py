"""The hit of a prompt that another node computed, as both nodes' caches explain it. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from tasuki.engine.messages import CAUSES_IN_ORDER, NOT_PULLED, HitBreakdown


def pair_hit(computed: HitBreakdown, held: HitBreakdown) -> HitBreakdown:
    """`computed` with the causes that the pair lost tokens by.

    computed: by the node that computed the prompt. held: the same prompt in this node's cache when
    it was asked for. What this node could have given and that one had not is `not_pulled`; what is
    new to that node alone was lost for this node's cause. in_pages stays that node's: callers that
    share a cache do not learn where a prompt was computed (server/auth/tenants.py). Invariant:
    usable_tokens + the sum of causes stays as it was.
    """
    known = min(max(computed.usable_tokens, held.usable_tokens), computed.prompt_tokens)
    causes = dict.fromkeys((NOT_PULLED, *CAUSES_IN_ORDER), 0)
    causes[NOT_PULLED] = known - computed.usable_tokens
    for cause, start, stop in _spans(computed):
        start = max(start, known)
        if cause != "new":
            causes[cause] += max(0, stop - start)
            continue
        for here, begin, end in _spans(held):
            begin, end = max(begin, start), min(end, stop)
            causes[here] += max(0, end - begin)
            start = max(start, end)
        causes["new"] += max(0, stop - start)
    return replace(computed, causes=causes)


def _spans(hit: HitBreakdown) -> Iterator[tuple[str, int, int]]:
    """Each cause with the tokens [start, stop) that it took, as the tree lays them over a
    prompt."""
    start = hit.usable_tokens
    for cause in CAUSES_IN_ORDER:
        stop = start + hit.causes.get(cause, 0)
        yield cause, start, stop
        start = stop
