"""Reports of a prefill node, held to what a node of this version could report.

They are kept, counted and shown. Pure: each function returns a report that is within bounds, or
raises PeerInvalid naming the field.
"""

import math
from dataclasses import replace

from tasuki.engine.messages import (
    CAUSES,
    ESTIMATES,
    EVICTION_KINDS,
    TIERS,
    Choice,
    EvictedCheckpoint,
    Eviction,
    HitBreakdown,
    PullReport,
    RouteReport,
    TransferReport,
)
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid

_CHECKPOINT_KINDS = frozenset(kind.value for kind in CheckpointKind)
_CHOICES = frozenset(choice.value for choice in Choice)
_MOST_TOKENS = 2**32 - 1
"""Also of windows and pages."""


def bounded_hit(hit: HitBreakdown) -> HitBreakdown:
    if hit.in_pages is not None:
        hit = replace(hit, in_pages=bounded_hit(hit.in_pages))
    for field in ("prompt_tokens", "kv_tokens", "usable_tokens"):
        _tokens(getattr(hit, field), f"hit.{field}")
    if hit.template_changed_at is not None:
        raise PeerInvalid("hit.template_changed_at is no peer's field")
    for cause, tokens in hit.causes.items():
        _tokens(tokens, f"hit.causes[{peer_values.known(cause, 'hit.causes', CAUSES)}]")
    others = sum(hit.causes.values())
    if hit.usable_tokens + others != hit.prompt_tokens:
        raise PeerInvalid(
            f"hit of {hit.prompt_tokens} tokens has {hit.usable_tokens} usable ones and "
            f"{others} others"
        )
    for tier, tokens in hit.loaded.items():
        _tokens(tokens, f"hit.loaded[{peer_values.known(tier, 'hit.loaded', TIERS)}]")
    if sum(hit.loaded.values()) > hit.usable_tokens:
        raise PeerInvalid(
            f"hit of {hit.usable_tokens} usable tokens has {sum(hit.loaded.values())} loaded ones"
        )
    if hit.checkpoint_source is not None:
        peer_values.known(hit.checkpoint_source, "hit.checkpoint_source", _CHECKPOINT_KINDS)
    return hit if hit.lost is None else replace(hit, lost=_bounded_evicted_checkpoint(hit.lost))


def _bounded_evicted_checkpoint(lost: EvictedCheckpoint) -> EvictedCheckpoint:
    _tokens(lost.tokens, "lost.tokens")
    peer_values.seconds(lost.slabs_since, "lost.slabs_since", peer_values.MOST_BYTES)
    return lost if lost.eviction is None else replace(lost, eviction=_bounded(lost.eviction))


def _bounded(eviction: Eviction) -> Eviction:
    peer_values.known(eviction.kind, "eviction.kind", EVICTION_KINDS)
    kind, score, taken_by = eviction.checkpoint_kind, eviction.score, eviction.taken_by
    if kind is not None:
        peer_values.known(kind, "eviction.checkpoint_kind", _CHECKPOINT_KINDS)
    _tokens(eviction.tokens, "eviction.tokens")
    peer_values.within(eviction.slabs, "eviction.slabs", 0, peer_values.MOST_BYTES)
    if score is not None:
        peer_values.within(score, "eviction.score", -math.inf, math.inf)
    # A client over there may have named it.
    return eviction if taken_by is None else replace(eviction, taken_by=peer_values.shown(taken_by))


def bounded_pull(pulled: PullReport) -> PullReport:
    _tokens(pulled.tokens, "pulled.tokens")
    peer_values.count(pulled.bytes, "pulled.bytes")
    peer_values.seconds(pulled.seconds, "pulled.seconds")
    return pulled


def bounded_route(route: RouteReport) -> RouteReport:
    peer_values.known(route.choice, "route.choice", _CHOICES)
    for name, seconds in route.estimates.items():
        peer_values.known(name, "route.estimates", ESTIMATES)
        peer_values.seconds(seconds, f"route.estimates[{name}]", peer_values.MOST_BYTES)
    return route


def bounded_transfer(report: TransferReport) -> TransferReport:
    peer_values.count(report.bytes, "report.bytes")
    _tokens(report.windows, "report.windows")
    _tokens(report.pages, "report.pages")
    peer_values.seconds(report.hidden_seconds, "report.hidden_seconds")
    peer_values.seconds(report.exposed_seconds, "report.exposed_seconds")
    return report


def _tokens(count: int, field: str) -> None:
    peer_values.count(count, field, _MOST_TOKENS)
