"""Tenants: a request's caller and tenant, the salts between tenants, and the usage each may see.

RequestContext: the caller, tenant, trace and kind of an admitted request. Pure.

Salts: tenants share cached prefixes with no other tenant. Uses keys' names and scopes, never keys;
knows neither transports nor the tree. Pure.

A prompt's salt is made of the tenant's name and the client's own salt:

    no tenant    the client's salt unchanged; empty if it gave none
    a tenant     MARK + SHA-256("tasuki tenant v1" + length of name + name + client's salt)

Invariants: two different pairs of name and client's salt have two different salts. The length (4
bytes, big-endian) fixes the end of the name, and no client's salt may begin with MARK, or with
that of updated weights (pycache/weights_namespace.py). So no client reaches another tenant's
prompts by its choice of salt. The same pair has the same salt on every node, so a prefill node
separates the same prompts as its decode nodes do. A name is no secret: a tenant's salt separates
prompts, but does not hide the names of prefixes from their watchers (docs/security.md).

Visible usage: the length of the cached prefix reveals whether another caller's prompt begins the
same way. So the counts are only as fine as the caller's right to see whether a prompt is cached:

    operators            every count, exactly
    a tenant's callers   usable tokens exactly, because every cached token is the tenant's own; the
                         unusable ones by whole pages
    callers that share   the counts of a cache of whole pages; nothing derived from exact counts:
                         neither the node that computed the prompt nor the reason

Pure. Invariants: usable + causes == prompt in every view. If callers share prefixes, two prompts
with the same whole pages in the cache get the same view. Only operators see evictions, because an
eviction names other callers' requests. Only operators see why a prefill node was chosen, because
its bids show the load from other callers.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from tasuki.pycache.weights_namespace import names_weights
from tasuki.server.errors import InvalidField, PermissionDenied

from .callers import ANYBODY, Caller, Scope

TRACE_HEADER = "traceparent"
"""The W3C name of trace context, in HTTP headers and in gRPC metadata."""


CHAT, TEXT_COMPLETION = "chat", "text_completion"
"""Names of a request's operation: values of OpenTelemetry's gen_ai.operation.name."""


@dataclass(frozen=True)
class RequestContext:
    """The caller, tenant, trace and kind of an admitted request. traceparent: the caller's span in
    W3C's form; empty if there is none. tenant: from tenant_of(). operation: OpenTelemetry's name of
    the operation."""

    caller: Caller = ANYBODY
    traceparent: str = ""
    tenant: str | None = None
    operation: str = TEXT_COMPLETION

    @property
    def line(self) -> str:
        """Return the name of the request's queue: its tenant or caller. Queues take turns for
        fairness between callers."""
        return self.tenant or self.caller.name


ANONYMOUS = RequestContext()


TENANT_KEY = "x-tasuki-tenant"
"""Name of the HTTP header and gRPC metadata key with the tenant of a gateway's call."""

EVERY_TENANT = "*"
"""The value a watcher of cache blocks may give in place of a tenant's name, to see all tenants."""

MAX_SALT = 256

_DOMAIN = b"tasuki tenant v1"
_MARK = b"\0tasuki tenant\0"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")


@dataclass(frozen=True)
class WatchScope:
    """The rights of a watcher of cache blocks: the prompts with blocks visible to it. tenant: the
    tenant of the watcher's own prompts. others: the watcher sees every other tenant's blocks
    too."""

    caller: Caller
    tenant: str | None
    others: bool


def tenant_of(caller: Caller, named: Sequence[str]) -> str | None:
    """Return the tenant of a call's prompts: the named one, or the caller's. None: they share
    cached prefixes with all other calls without a tenant. named: the call's values under
    TENANT_KEY. Raises PermissionDenied, InvalidField."""
    if not named:
        return caller.tenant
    _check_may_name(caller)
    (name, *more) = named
    if more or not _NAME.fullmatch(name):
        raise InvalidField(
            TENANT_KEY,
            "must be one name of 1 to 64 letters, digits and ._:@- that begins with a letter or a "
            "digit",
        )
    return name


def watch_scope(caller: Caller, named: Sequence[str]) -> WatchScope:
    """Return the rights of a subscriber to cache blocks. named: the call's values under TENANT_KEY,
    or EVERY_TENANT alone. Raises PermissionDenied, InvalidField."""
    if list(named) != [EVERY_TENANT]:
        return WatchScope(caller, tenant_of(caller, named), others=False)
    _check_may_name(caller)
    return WatchScope(caller, caller.tenant, others=True)


def salt_of(tenant: str | None, cache_salt: bytes) -> bytes:
    """Return the salt of a prompt in the engine. tenant: the prompt's tenant. cache_salt: the
    client's own salt. Raises InvalidField, also for a mark of tenants or weights."""
    if len(cache_salt) > MAX_SALT:
        raise InvalidField("cache_salt", f"has {len(cache_salt)} bytes: send at most {MAX_SALT}")
    if tenant is None:
        if cache_salt.startswith(_MARK) or names_weights(cache_salt):
            raise InvalidField("cache_salt", "begins as a tenant's does: choose another")
        return cache_salt
    name = tenant.encode()
    content = _DOMAIN + len(name).to_bytes(4, "big") + name + cache_salt
    return _MARK + hashlib.sha256(content).digest()


def _check_may_name(caller: Caller) -> None:
    if not (caller.may(Scope.GATEWAY) or caller.may(Scope.OPERATOR)):
        raise PermissionDenied(
            f"{TENANT_KEY} is for keys of the scope gateway or operator, and {caller.name}'s has "
            "neither: leave it out"
        )


HIDDEN_NODE = ""
"""Replacement for the name of the computing node, if the caller may not see it."""


def visible_end(end: Finished, request_context: RequestContext) -> Finished:
    """Return a request's end as its caller may see it, with visible_usage(). Leave out the
    request's phases if the caller may not see exact hits, because they would show the node of the
    prompt's prefill."""
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
    """Return True if the caller may see exact cache hits. Every cached prefix of its prompts is
    then its own, or open to it."""
    return request_context.tenant is not None or request_context.caller.may(Scope.OPERATOR)


def _by_pages(hit: HitBreakdown) -> HitBreakdown:
    """Return the hit's token counts in whole pages. A cause ends at the end of a page; the rest of
    a page counts as new."""
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
