"""What of a request's end its caller is told.

A count that says how far a prompt agrees with cached ones answers a guess of somebody else's, so
it is told as finely as the caller may know whose those were:

    operators            everything, exactly
    a tenant's callers   usable tokens exactly, since all of them are the tenant's own; what is not
                         usable by whole pages
    callers that share   what would stand if the cache knew whole pages only, and nothing that
                         follows from exact counts: not where the prompt was computed, nor why

Pure. Invariants: usable + causes == prompt in each; what callers that share are told is the same
for any two prompts that agree with the cache in the same whole pages. Nobody but an operator is
told what the cache gave up, as that names others' requests.
"""

from dataclasses import replace

from tasuki.engine.messages import Eviction, Finished, HitBreakdown, Usage
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.server.auth.caller import Scope
from tasuki.server.auth.request_context import RequestContext

NOT_TOLD = ""
"""In the place of a prefill node's name."""


def visible_end(end: Finished, request_context: RequestContext) -> Finished:
    """As visible_usage(); which states a request went through follows where it was computed."""
    life = end.life if _knows_whose(request_context) else ()
    return replace(end, usage=visible_usage(end.usage, request_context), life=life)


def visible_evictions(
    evictions: tuple[Eviction, ...], request_context: RequestContext
) -> tuple[Eviction, ...]:
    return evictions if request_context.caller.may(Scope.OPERATOR) else ()


def visible_usage(usage: Usage, request_context: RequestContext) -> Usage:
    if request_context.caller.may(Scope.OPERATOR):
        return usage
    if _knows_whose(request_context):
        return replace(usage, hit=None if usage.hit is None else _by_pages(usage.hit))
    return replace(
        usage,
        hit=None if usage.hit is None else usage.hit.in_pages,
        transfer=None,
        prefilled_on=NOT_TOLD,
        local_fallback=False,
        pulled=None,
        route=None,
    )


def _knows_whose(request_context: RequestContext) -> bool:
    """All that its prompts agree with is the caller's own, or may be known to it."""
    return request_context.tenant is not None or request_context.caller.may(Scope.OPERATOR)


def _by_pages(hit: HitBreakdown) -> HitBreakdown:
    """Each cause ends at the end of a page, and what stood inside one is new."""
    causes = dict.fromkeys(hit.causes, 0)
    end = done = hit.usable_tokens
    for cause in _ORDER:
        end += hit.causes.get(cause, 0)
        whole = max(done, end // PAGE_TOKENS * PAGE_TOKENS)
        causes[cause] = whole - done
        done = whole
    causes["new"] = hit.prompt_tokens - done
    kv = max(hit.usable_tokens, hit.kv_tokens // PAGE_TOKENS * PAGE_TOKENS)
    return replace(hit, kv_tokens=kv, causes=causes, lost=None, in_pages=None)


# As the tree lays them over a prompt (cpp_cache/src/matcher.cpp).
_ORDER = ("checkpoint_evicted", "never_checkpointed", "alignment", "in_flight", "kv_evicted")
