"""How much of a request's usage its caller may see.

The length of the cached prefix reveals whether another caller's prompt begins the same way. So the
counts are as fine as the caller's right to see whose prompts are cached:

    operators            every count, exactly
    a tenant's callers   usable tokens exactly, since every cached token is the tenant's own; the
                         unusable ones by whole pages
    callers that share   the counts of a cache of whole pages, and nothing that follows from exact
                         counts: neither where the prompt was computed nor why

Pure. Invariants: usable + causes == prompt in every view; two prompts that share the same whole
pages with the cache get the same view where callers share it. Only operators see evictions, since
an eviction names other callers' requests, and why a prefill node was chosen, since its bids show
what others make nodes do.
"""

from dataclasses import replace

from tasuki.engine.messages import (
    CAUSES_IN_ORDER,
    NOT_PULLED,
    TEMPLATE_CHANGED,
    Eviction,
    Finished,
    HitBreakdown,
    Usage,
)
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.server.auth.caller import Scope
from tasuki.server.auth.request_context import RequestContext

HIDDEN_NODE = ""
"""Replaces the name of the node that computed the prompt."""


def visible_end(end: Finished, request_context: RequestContext) -> Finished:
    """With visible_usage(), and without the request's states where these would show which node
    computed the prompt."""
    life = end.life if _sees_exact_hits(request_context) else ()
    return replace(end, usage=visible_usage(end.usage, request_context), life=life)


def visible_evictions(
    evictions: tuple[Eviction, ...], request_context: RequestContext
) -> tuple[Eviction, ...]:
    return evictions if request_context.caller.may(Scope.OPERATOR) else ()


def visible_usage(usage: Usage, request_context: RequestContext) -> Usage:
    if request_context.caller.may(Scope.OPERATOR):
        return usage
    usage = replace(usage, prefill_choice=None)
    if _sees_exact_hits(request_context):
        return replace(usage, hit=None if usage.hit is None else _by_pages(usage.hit))
    return replace(
        usage,
        hit=None if usage.hit is None else usage.hit.in_pages,
        transfer=None,
        prefilled_on=HIDDEN_NODE,
        local_fallback=False,
        pulled=None,
        route=None,
    )


def _sees_exact_hits(request_context: RequestContext) -> bool:
    """Whether every cached prefix of its prompts is the caller's own, or open to it."""
    return request_context.tenant is not None or request_context.caller.may(Scope.OPERATOR)


def _by_pages(hit: HitBreakdown) -> HitBreakdown:
    """The same hit in whole pages: a cause ends where a page ends; a page's rest counts as new."""
    causes = dict.fromkeys(hit.causes, 0)
    end = done = hit.usable_tokens
    for cause in (NOT_PULLED, *CAUSES_IN_ORDER[:-1], TEMPLATE_CHANGED):
        end += hit.causes.get(cause, 0)
        whole = max(done, end // PAGE_TOKENS * PAGE_TOKENS)
        if cause in causes:
            causes[cause] = whole - done
        done = whole
    causes["new"] = hit.prompt_tokens - done
    kv = max(hit.usable_tokens, hit.kv_tokens // PAGE_TOKENS * PAGE_TOKENS)
    return replace(hit, kv_tokens=kv, causes=causes, lost=None, in_pages=None)
