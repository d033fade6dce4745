"""Which request took whose place in the cache.

Owns a bounded memory of evictions, by number. Asks the cache for what it decided; decides nothing.
Thread rule: the engine loop's. Invariant: an eviction is attributed before the request that caused
it may release its allocation, so `collect` runs once a step.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping

from tasuki.engine.messages import EvictedCheckpoint, Eviction, HitBreakdown, RequestId
from tasuki.engine.messages.evictions import LOAD_DECLINED
from tasuki.pycache._cpp_cache import CheckpointKind, Match, MissReasons, PageMatch
from tasuki.pycache._cpp_cache import Eviction as Decision
from tasuki.pycache.prefix_cache import HybridPrefixCache


def breakdown(match: Match, lost: EvictedCheckpoint | None) -> HitBreakdown:
    pages = _counts(match.prompt_tokens, match.in_pages, None, None)
    return _counts(match.prompt_tokens, match, lost, pages)


def causes_of(reasons: MissReasons) -> dict[str, int]:
    """By their public names. Of what a tier has and was not loaded the tree says only that."""
    causes = reasons.as_dict()
    declined = causes.pop("below", None)
    return causes if declined is None else {LOAD_DECLINED: declined, **causes}


def _counts(
    prompt_tokens: int,
    match: Match | PageMatch,
    lost: EvictedCheckpoint | None,
    in_pages: HitBreakdown | None,
) -> HitBreakdown:
    return HitBreakdown(
        prompt_tokens=prompt_tokens,
        kv_tokens=match.kv_tokens,
        usable_tokens=match.usable_tokens,
        causes=causes_of(match.miss_reasons),
        checkpoint_source=_name(match.checkpoint_kind),
        lost=lost,
        in_pages=in_pages,
    )


def _name(kind: CheckpointKind | None) -> str | None:
    return None if kind is None else kind.name.lower()


_REMEMBERED = 4096


class EvictionLedger:
    def __init__(
        self, cache: HybridPrefixCache, owners: Callable[[], Mapping[int, RequestId]]
    ) -> None:
        """owners: the requests that hold allocations now, by the allocation's id."""
        self._cache = cache
        self._pages_per_slab = cache.arena.layout.pages_per_slab
        self._owners = owners
        self._evictions: OrderedDict[int, Eviction] = OrderedDict()
        self._unreported: list[Eviction] = []

    def collect(self) -> None:
        """Take in what was evicted since the last call."""
        decisions = self._cache.drain_evictions()
        if not decisions:
            return
        owners = self._owners()
        for decision in decisions:
            taken_by = None if decision.allocation is None else owners.get(decision.allocation)
            eviction = self._read(decision, taken_by)
            self._evictions[eviction.sequence] = eviction
            self._unreported.append(eviction)
        while len(self._evictions) > _REMEMBERED:
            self._evictions.popitem(last=False)

    def take_unreported(self) -> tuple[Eviction, ...]:
        """Those collected since the last call, oldest first."""
        made, self._unreported = tuple(self._unreported), []
        return made

    def lost(self, match: Match) -> EvictedCheckpoint | None:
        """What of the prompt had a state that was evicted; None where nothing is remembered."""
        lost = match.lost
        if lost is None:
            return None
        self.collect()
        return EvictedCheckpoint(
            lost.boundary,
            lost.pages_since / self._pages_per_slab,
            self._evictions.get(lost.eviction),
        )

    def _read(self, decision: Decision, taken_by: RequestId | None) -> Eviction:
        return Eviction(
            decision.sequence,
            decision.kind,
            _name(decision.checkpoint_kind),
            decision.boundary,
            decision.pages / self._pages_per_slab,
            decision.score,
            taken_by,
        )
