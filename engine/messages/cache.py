"""Queries about the cache, its cursors and its events, with their replies."""

from dataclasses import field

from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import PackedEvents, PackedTree

from .reports import Eviction, PictureStats, StepReport, TierReport
from .requests import RequestPhase
from .types import Message, NodeName


class OpenCursor(Message):
    query_id: int
    salt: bytes = b""


class ForkCursor(Message):
    query_id: int
    cursor: int


class CloseCursor(Message):
    cursor: int


class StatsQuery(Message):
    query_id: int


class CountersQuery(Message):
    """Ask for the same as StatsQuery, in constant time. For a large cache the reply's `integrity`
    is the last known result of the cache's self-check."""

    query_id: int


class LoadQuery(Message):
    """Ask for the engine's capacity left for one more answer. Answered by LoadReply, in constant
    time."""

    query_id: int


class FlushCache(Message):
    query_id: int


class WatchCache(Message):
    """Report changes of the cache from now on. stream: the kind of changes, "all", "usable" or
    "spelled" (see PrefixCache.watch)."""

    query_id: int
    stream: str


class ReadEvents(Message):
    """Report the cache's changes since the last ReadEvents of this watch. REQUIRES: the watch is
    open."""

    query_id: int
    watch: int


class EndWatch(Message):
    watch: int


class TreeQuery(Message):
    """Ask for the `limit` heaviest subtrees of the cache's prefix tree. Answered by TreeReply.
    under: search below this tree node only. prefix: search below the deepest tree node holding KV
    of these tokens under `salt`."""

    query_id: int
    limit: int
    under: NodeName | None = None
    prefix: Keys | None = None
    salt: bytes = b""


CacheQuery = (
    OpenCursor
    | ForkCursor
    | CloseCursor
    | StatsQuery
    | CountersQuery
    | LoadQuery
    | FlushCache
    | WatchCache
    | ReadEvents
    | EndWatch
    | TreeQuery
)


class CursorOpened(Message):
    query_id: int
    cursor: int


class StatsReply(Message):
    """Sizes and counters of the engine. Fields not named here are counters.

    pages, slots: numbers of pages and of slots by use: free, working, tree, granted, quarantined,
    total, pinned. early: counters of decode steps begun before their prompt's last layers arrived
    (EarlyCounters); empty if this engine begins none. policies: prefill tokens recently saved by
    each eviction policy's shadow simulation; empty without shadows. policy: the eviction policy in
    use. slab_pages, slab_bytes: size of a slab (a fixed-size part of the arena), in pages and in
    bytes. each_bytes: bytes of one page and of one slot, by these names. part_bytes: bytes of each
    part of a page or slot (CacheLayout.part_bytes). stored: formats of
    weights, kv and states, and number of draft_layers, by these names. tiers: reports of the tiers
    below the arena, the nearest first. looked_up_tokens, usable_tokens: prompt tokens of ended
    requests, all and usable ones; each request counts once. retractions: times a request gave its
    memory back, to continue later. pictures: None without a vision tower.
    """

    query_id: int
    pages: dict[str, int]
    slots: dict[str, int]
    slabs: dict[str, int]
    tree: dict[str, int]
    lost: dict[str, int]
    requests: dict[RequestPhase, int]
    integrity: str = "ok"
    policy: str = ""
    policies: dict[str, float] = field(default_factory=dict)
    slab_pages: int = 1
    slab_bytes: int = 0
    each_bytes: dict[str, int] = field(default_factory=dict)
    part_bytes: dict[str, int] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    steps: StepReport | None = None
    early: dict[str, int] = field(default_factory=dict)
    tiers: tuple[TierReport, ...] = ()
    looked_up_tokens: int = 0
    usable_tokens: int = 0
    retractions: int = 0
    pictures: PictureStats | None = None


class LoadReply(Message):
    """The answer to LoadQuery. step_seconds: estimated seconds of a forward with one more answer;
    None if too few were measured. in_flight: number of requests not yet over. places: most answers
    running at the same time. free_kv: free fraction of the pages."""

    query_id: int
    step_seconds: float | None
    in_flight: int
    places: int
    free_kv: float
    draining: bool


class FlushReply(Message):
    query_id: int
    dropped: int


class WatchOpened(Message):
    query_id: int
    watch: int


class EventsReply(Message):
    query_id: int
    batch: PackedEvents


class TreeReply(Message):
    """The answer to TreeQuery. view: the tree nodes, parents before children; None if the tree has
    lost the node named in the query."""

    query_id: int
    view: PackedTree | None


class Evicted(Message):
    """The cache's evictions since the last report, oldest first."""

    evictions: tuple[Eviction, ...]
