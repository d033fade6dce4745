"""The logical side of the cache: radix tree, slabs, allocations, eviction. Knows ids, never memory.
Beside it the digests of memory, which know neither tree nor ids.

Single-threaded: only the engine loop calls it; digests may be taken on any thread. Token arrays are
one-dimensional, C-contiguous int32. What is Final here is read-only; an allocation's values may
change."""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .keys import Keys

PAGE_TOKENS: int

class CacheError(Exception):
    """Base of all errors below. Nothing has changed when one is raised."""

class ImpossibleRequest(CacheError):
    """No arena of this size can ever hold the request; the message names the tokens that would
    fit."""

class InvalidArgument(CacheError):
    """A malformed argument or a call that the allocation's state forbids."""

class IntegrityError(CacheError):
    """check_integrity() found a broken invariant; the message names it."""

class CheckpointKind(Enum):
    PROMPT_END = "prompt_end"
    TURN_END = "turn_end"
    BRANCH = "branch"
    MARK = "mark"
    INTERIOR = "interior"
    MESSAGE_END = "message_end"

class TierConfig:
    """Memory below the arena, in slabs of the arena's shape. A load from it costs fixed_cost and
    more for each page and slot, where prefill of one token costs 1; pages_a_second: what may be
    written in the long run, None for any number. filling: as_dropped, or ahead: whatever the tier
    above gets is written to it as soon as there is nothing else to write."""

    def __init__(
        self,
        *,
        slabs: int,
        fixed_cost: float = 0.0,
        page_cost: float = 0.0,
        slot_cost: float = 0.0,
        pages_a_second: float | None = None,
        filling: str = "as_dropped",
    ) -> None: ...
    slabs: Final[int]
    fixed_cost: Final[float]
    page_cost: Final[float]
    slot_cost: Final[float]
    pages_a_second: Final[float | None]
    filling: Final[str]

class TreeConfig:
    """slabs: slabs in the arena; blocks_per_slab: stride of page ids; pages_per_slab: pages one
    slab holds; policy: who is evicted, lru, value, auto, or marconi
    (for comparison); attention_cost: prefill cost of
    a token for each token before it, where the token alone costs 1; tiers: below the arena, the
    nearest first; ranks: who acknowledges each transfer between tiers."""

    def __init__(
        self,
        *,
        slabs: int,
        blocks_per_slab: int,
        pages_per_slab: int,
        max_ghost_nodes: int = 4096,
        policy: str = "lru",
        attention_cost: float = 0.0,
        tiers: Sequence[TierConfig] = ...,
        ranks: int = 1,
    ) -> None: ...
    slabs: Final[int]
    blocks_per_slab: Final[int]
    pages_per_slab: Final[int]
    max_ghost_nodes: Final[int]
    policy: Final[str]
    attention_cost: Final[float]
    tiers: Final[list[TierConfig]]
    ranks: Final[int]

class MissReasons:
    """Why prompt tokens were not usable. usable_tokens + sum of all fields == prompt_tokens."""

    new: Final[int]
    never_checkpointed: Final[int]
    checkpoint_evicted: Final[int]
    kv_evicted: Final[int]
    alignment: Final[int]
    in_flight: Final[int]
    below: Final[int]
    """A tier below the arena has what a load would make usable; in as_dict() where there is any."""
    def as_dict(self) -> dict[str, int]: ...

class EvictedCheckpoint:
    """The deepest state of a prompt that is gone, and what took it."""

    eviction: Final[int]
    """Sequence number of the Eviction."""
    boundary: Final[int]
    """Tokens that it covered."""
    pages_since: Final[int]
    """Freed by that eviction and all later ones: an arena larger by as much had kept it, as far
    as evictions go by age."""

class Eviction:
    """One decision of the policy."""

    sequence: Final[int]
    """1, 2, 3, ... over the tree's life."""
    kind: Final[str]
    """pages, checkpoint or tail."""
    checkpoint_kind: Final[CheckpointKind | None]
    boundary: Final[int]
    """Tokens from the root to its end."""
    pages: Final[int]
    """Freed; of a state those its slot is worth."""
    score: Final[float | None]
    """What the policy held it to be worth, a page; None of one that goes by age."""
    allocation: Final[int | None]
    """That needed the room; None: a flush."""

class PageMatch:
    """A match as it were if the tree knew whole pages only: equal for any two prompts that agree
    with the tree in the same whole pages, whatever they have in common inside the next one."""

    kv_tokens: Final[int]
    usable_tokens: Final[int]
    checkpoint_kind: Final[CheckpointKind | None]
    miss_reasons: Final[MissReasons]
    """usable_tokens + sum of all fields == the prompt's tokens."""

class StoredState:
    """A state below the arena from which a prompt could resume once it was loaded."""

    boundary: Final[int]
    kind: Final[CheckpointKind]
    tier: Final[int]
    """0 is the nearest below the arena."""
    pages: Final[list[int]]
    """To be loaded, by tier."""
    cost: Final[float]
    """Of the load; prefill of one token is 1."""

class TierWrite:
    """A copy to be made downwards; from the arena where source is None."""

    id: Final[int]
    source: Final[int | None]
    target: Final[int]
    pages: Final[list[tuple[int, int]]]
    """(from, to)."""
    page_count: Final[int]
    slot: Final[tuple[int, int]]

class TierLoad:
    """What an allocation waits for, each from the nearest tier that has it."""

    id: Final[int]
    pages: Final[list[tuple[int, int, int]]]
    """(tier, its page, the arena's page), in the order of the prompt."""
    state: Final[tuple[int, int, int]]
    """(tier, its slot, the working slot)."""
    boundary: Final[int]
    """Tokens that need no forward once it has landed."""

class TierStats:
    """What a tier holds now, and over the cache's life what was written to it, loaded from it and
    dropped."""

    pages: Final[PoolCounts]
    slots: Final[PoolCounts]
    slabs_free: Final[int]
    slabs_total: Final[int]
    written_pages: Final[int]
    written_slots: Final[int]
    loaded_pages: Final[int]
    loaded_slots: Final[int]
    dropped_pages: Final[int]
    dropped_slots: Final[int]
    refused_writes: Final[int]
    """That never began: no room, no budget, or not worth it."""
    abandoned_writes: Final[int]
    """Whose source went meanwhile."""
    failed_transfers: Final[int]
    budget_pages: Final[float | None]
    """That may be written now, below 0 where a transfer took more than there were; None: any
    number."""

class Match:
    """A read-only answer of the tree; holds nothing."""

    prompt_tokens: Final[int]
    kv_tokens: Final[int]
    """Tokens of the prompt whose KV stands in the tree (page multiple, or exact where a tail
    matches)."""
    usable_tokens: Final[int]
    """Tokens up to the deepest usable checkpoint; at most prompt_tokens - 1."""
    checkpoint_kind: Final[CheckpointKind | None]
    branch_tokens: Final[int | None]
    """Where this prefill should leave a checkpoint since KV reaches deeper than state, if
    anywhere."""
    miss_reasons: Final[MissReasons]
    in_pages: Final[PageMatch]
    lost: Final[EvictedCheckpoint | None]
    """The deepest state of the prompt that was evicted, where its eviction is remembered."""
    stored: Final[list[StoredState]]
    """Deeper than usable_tokens, the deepest first."""
    interior_tokens: Final[list[int]]
    """Of an allocation's match: where states inside a long first-seen prompt would pay."""

class Allocation:
    """What one request holds. Returned by allocate() and allocate_to_receive(); a handle, released
    exactly once."""

    id: Final[int]
    generation: Final[int]
    """Monotone over the tree's life: ids granted under another generation have another
    owner."""
    match: Final[Match]
    """The match this allocation was cut from."""
    cached_tokens: Final[int]
    """Tokens that need no forward: usable_tokens for allocate(), KV held (page multiple) for
    allocate_to_receive()."""
    cow_source_slot: Final[int | None]
    """Checkpoint to fork into working_slots[0]; None means: zero it (or, for a receiver, await
    it)."""
    tail_copy: Final[tuple[int, int] | None]
    """(tree page, own page) to copy before the first forward, where cached_tokens is inside a
    page."""
    source_page: Final[int | None]
    """The tree's page that holds the tokens after the last whole page of cached_tokens; None
    where there are none."""
    shared_pages: Final[int]
    """The first so many of pages belong to the tree (pinned, read-only)."""
    pages: Final[NDArray[np.int32]]
    """Page ids in logical order: tree pages, then own. Read-only; only extend() adds some."""
    working_slots: Final[list[int]]
    load: Final[TierLoad | None]
    """Of allocate_or_load(), until it has ended: match and cached_tokens then say what it
    brought."""
    is_void: Final[bool]
    """Its load did not land: release it and allocate again. It counts as no request."""
    tokens: Final[int]
    """Tokens known to the allocation: the prompt and what append() added."""
    capacity_tokens: Final[int]

class PoolCounts:
    """free + working + tree + granted + quarantined == total; pinned counts tree items under a
    allocation."""

    free: Final[int]
    working: Final[int]
    tree: Final[int]
    granted: Final[int]
    quarantined: Final[int]
    total: Final[int]
    pinned: Final[int]

class TreeStats:
    pages: Final[PoolCounts]
    slots: Final[PoolCounts]
    slabs_free: Final[int]
    slabs_of_pages: Final[int]
    slabs_of_slots: Final[int]
    slabs_total: Final[int]
    nodes: Final[int]
    ghost_nodes: Final[int]
    checkpoints: Final[int]
    allocations: Final[int]
    cursors: Final[int]
    evicted_pages: Final[int]
    """Counter over the tree's life."""
    evicted_checkpoints: Final[int]
    allocated_requests: Final[int]
    """Counter of allocations cut by allocate() (not allocate_to_receive())."""
    prompt_tokens: Final[int]
    """Sum over allocations cut by allocate()."""
    usable_tokens: Final[int]
    lost: Final[MissReasons]
    """Counters by cause; prompt_tokens == usable_tokens + sum of these."""
    tiers: Final[list[TierStats]]
    """Below the arena, the nearest first."""
    waiting_writes: Final[int]
    policies: Final[dict[str, float]]
    """Of auto: what each candidate would have saved of late, prefill of one token is 1; the
    last thousand requests of the sample count most."""

class EventGap:
    """The watcher was too slow: its stream's events first_lost..resync_from are not sent one by
    one."""

    first_lost: Final[int]
    resync_from: Final[int]

class CacheEvent:
    """One change of what the tree keeps. A prefix is named by a hash: see prefix_hashes()."""

    sequence: Final[int]
    """1, 2, 3, ... in its stream; in a snapshot the batch's."""
    kind: Final[str]
    """page_stored, page_removed, checkpoint_stored, checkpoint_removed, cleared, or in the usable
    stream checkpoint_moved."""
    checkpoint_kind: Final[CheckpointKind | None]
    """Of checkpoint_stored."""
    tokens: Final[int]
    """Of the prefix: a multiple of PAGE_TOKENS but for the checkpoint of a tail, whose partial
    page comes and goes with it."""
    prefix: Final[bytes | None]
    """16 bytes; None of cleared."""
    place: Final[int]
    """Of checkpoint_stored and checkpoint_moved: the nearest place that has it, 0 for the arena,
    then the tiers below it."""
    page: Final[list[int]]
    """Tokens of a stored page in the spelled stream; empty elsewhere."""
    parent: Final[bytes | None]
    """The prefix of whole pages before this one's last page or part of one."""
    namespace: Final[bytes | None]
    """The name of the empty prefix under the same salt; None of cleared."""

class EventBatch:
    """Changes in order, or a snapshot. A value: iterate it on any thread, at any time."""

    sequence: Final[int]
    """Every change of the stream up to it was drained."""
    is_snapshot: Final[bool]
    """Forget all that was drained before: these *_stored events are all that stands, parents
    first. The first batch of a watch is one, and so is one with a gap."""
    gap: Final[EventGap | None]
    def packed(self) -> tuple[NDArray[np.uint64], bytes, NDArray[np.int32]]:
        """The same as plain values (packed.py): numbers, of each event its sequence, kind,
        1 + the checkpoint's kind or 0, tokens and tokens of its page; three names of 16 bytes of
        each, prefix, parent and namespace; and the pages' tokens."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[CacheEvent]: ...

class Standing:
    """What of a subtree, its top included, is resident."""

    tokens: Final[int]
    """Of whole pages."""
    nodes: Final[int]
    states: Final[int]

class ViewedNode:
    name: Final[tuple[int, int] | None]
    """For view(under=...), as long as the node lives. None: all namespaces together."""
    above: Final[int | None]
    """Its parent's place in the view; None of the first."""
    depth: Final[int]
    """Tokens from the root to its end."""
    tokens: Final[int]
    """Of its own run, a multiple of PAGE_TOKENS."""
    children: Final[int]
    """Resident ones, in the view or not."""
    state: Final[CheckpointKind | None]
    """The checkpoint at its end."""
    tails: Final[int]
    """States inside the page that follows."""
    allocations: Final[int]
    """Requests that stand here."""
    state_pins: Final[int]
    """Requests that fork from its states."""
    is_protected: Final[bool]
    """A request stands here or below."""
    unused: Final[int]
    """Mutating calls since its pages were last used."""
    standing: Final[Standing]
    """It and all below."""
    hidden: Final[Standing]
    """What is below it and not in the view."""

class TreeView:
    """Parents come before their children. A value: iterate it on any thread, at any time."""

    def packed(self) -> NDArray[np.uint64]:
        """The same as plain values (packed.py): a row a node, of its name's two numbers,
        above, depth, tokens, children, state, tails, allocations, state_pins, is_protected, unused,
        standing's three and hidden's. Name, above and state are 1 + their value, or 0."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ViewedNode]: ...

class HeldState:
    """A state that nobody forks from now; for path_to(), as long as it stands."""

    name: Final[tuple[int, int | None, int]]
    """Of it alone, as long as it stands."""
    boundary: Final[int]
    """Tokens that it is the state after."""
    awaited: Final[bool]
    """An open session's latest turn ended here."""
    value: Final[float | None]
    """What the policy holds it to be worth, a page; None of one that only orders by age."""

def prefix_hashes(tokens: Keys, salt: bytes = b"") -> list[bytes]:
    """The names that events give to the prefixes of tokens under that salt: of nothing, of each
    run of whole pages, and, where tokens end inside a page, of all of them. 16 bytes each, equal
    in every process."""

class FleetIndex:
    """Which node of a fleet holds which usable prefix, by the checkpoint events of each. Nodes are
    numbered by the caller, 0 to 65535. About 70 bytes a checkpoint; len() counts checkpoints.
    Answers are hints: names are kept in part."""

    def __init__(self) -> None: ...
    def store(self, node: int, prefix: bytes, parent: bytes, tokens: int) -> None:
        """A checkpoint_stored event's. Raises InvalidArgument."""

    def remove(self, node: int, prefix: bytes, parent: bytes, tokens: int) -> None:
        """A checkpoint_removed event's; what is not listed is let be. Raises InvalidArgument."""

    def forget(self, node: int) -> None:
        """Of a node that is gone or sends a snapshot: 20 ms at a million checkpoints."""

    def holders(self, prompt: Keys, salt: bytes, enough: int, seed: int) -> list[tuple[int, int]]:
        """(node, usable tokens) of the deepest `enough` holders, deepest first; equals in an
        order drawn by seed, 0 to 2^64 - 1. Raises InvalidArgument."""

    def look_up(
        self, prompt: Keys, salt: bytes, enough: int, seed: int
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """The holders, and the prompt's beginnings as (tokens, name), shortest first: at each 512
        tokens and, from 8K on, each eighth of the depth more, up to 32K, without the last token.
        One pass over the tokens. Raises InvalidArgument."""

    def __len__(self) -> int: ...

class PrefixCache:
    def __init__(self, config: TreeConfig) -> None: ...
    @property
    def config(self) -> TreeConfig: ...
    @property
    def policy(self) -> str:
        """Who chooses victims now: under auto, lru or value, whichever does best."""

    # ask
    def match(self, tokens: Keys, salt: bytes = b"", cursor: int | None = None) -> Match:
        """Changes nothing. Raises InvalidArgument on an empty prompt or a cursor of another salt.

        A cursor vouches that tokens extend what was published under it: the walk starts at its
        place and compares only the page before it again. Never pass one with an edited history."""
    def capacity_tokens(self, working_slots: int) -> int:
        """Most tokens one request can ever hold beside that many working slots."""
    def stats(self) -> TreeStats: ...
    @property
    def room_version(self) -> int:
        """While it stands still, an allocation that was refused would be refused again."""
    def check_integrity(self) -> None: ...

    # sessions
    def open_cursor(self, salt: bytes = b"") -> int: ...
    def fork_cursor(self, cursor: int) -> int: ...
    def close_cursor(self, cursor: int) -> None: ...

    # do
    def allocate(
        self,
        tokens: Keys,
        *,
        salt: bytes = b"",
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None = None,
    ) -> Allocation | None:
        """Pin the match, take own pages up to capacity_tokens and working slots, all or nothing:
        None says that it will fit once others release. Raises ImpossibleRequest."""
    def allocate_or_load(
        self,
        tokens: Keys,
        *,
        salt: bytes = b"",
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None = None,
        load_wait: float = 0.0,
    ) -> Allocation | None:
        """As allocate(), but where a tier below the arena has what gets the prompt done sooner, a
        load that begins load_wait (tokens of prefill) from now included, the allocation has a load:
        its own pages and first working slot are to be written so, and it is as if granted until
        the load was acknowledged. Needs a working slot."""
    def allocate_to_receive(
        self,
        tokens: Keys,
        *,
        salt: bytes = b"",
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None = None,
    ) -> Allocation | None:
        """As allocate(), for a receiver: tree KV is pinned to its last whole page at or before
        prompt
        - 1,
        whether or not a state stands there; nothing is forked: the state arrives in
        working_slots[0]."""
    def allocate_to_send(self, tokens: Keys, *, salt: bytes = b"") -> Allocation | None:
        """Pin what is usable of the prompt, to be read by a sender: pages up to the last whole one,
        source_page and cow_source_slot. Takes no page and no slot; counts as no request. None:
        nothing is usable."""
    def extend(self, allocation: Allocation, capacity_tokens: int) -> bool:
        """More own pages, all or nothing."""
    def append(self, allocation: Allocation, tokens: Keys) -> None:
        """Append the tokens that follow (sampled and forwarded)."""
    def take_checkpoint_slot(self, allocation: Allocation) -> int | None:
        """A destination slot for a snapshot, by eviction if need be; None: skip this checkpoint."""
    def insert(
        self,
        allocation: Allocation,
        boundary: int,
        slot: int | None,
        kind: CheckpointKind,
        hint: str = "unknown",
    ) -> None:
        """Give the tree the pages whole within [0, boundary) and, with a slot, the state at
        boundary.

        REQUIRES: boundary <= allocation.tokens; slot is a working or destination slot of the
        allocation and holds exactly the state after boundary tokens, clean for every later
        consumer. The slot now is the tree's; a duplicate of an existing checkpoint is freed
        instead. A boundary inside a page publishes a tail: needs a slot, takes the allocation's
        partial page too, and ends the allocation's right to write (only release() may follow).
        `hint` is what the end of the answer shows of the next request: unknown, tool_call or
        end_of_turn."""
    def insert_midway(
        self, allocation: Allocation, boundary: int, slot: int, kind: CheckpointKind
    ) -> tuple[int, int] | None:
        """As insert(), of a state behind which the allocation goes on to write.

        Inside a page the state gets a page of its own: the returned pages are from where the caller
        copies the KV, and to where, before anybody reads it. None: nothing is to be copied. Where
        there is no page for it the slot is free, and nothing stands. A MESSAGE_END takes the place
        of the one that the allocation started from, at the allocation's release, if a state stands
        on the page before that one, or none could.
        """
    def release(self, allocation: Allocation) -> None:
        """Unpin, free what is still the allocation's own. InvalidArgument if already released or
        granted."""

    # hand-over
    def grant(self, allocation: Allocation) -> None:
        """The allocation's own pages and working slots may now be written by a remote sender."""
    def accept_received(self, allocation: Allocation) -> None:
        """Every window has landed and was verified: granted becomes working again."""
    def quarantine(self, allocation: Allocation) -> int:
        """End a granted allocation whose writer may still write; its own ids wait for
        free_quarantined()."""
    def free_quarantined(self, quarantine: int) -> None:
        """The writer is fenced: the ids are free."""

    # events
    def watch(self, stream: str = "usable", capacity: int = 65536) -> int:
        """Begin to record changes: of all, of usable prefixes alone (those with a checkpoint), or
        of all with the tokens of each stored page (spelled).
        At most capacity events wait undrained; then they are dropped and the next batch is a
        snapshot with a gap. Hashes the tokens of the whole tree if nobody watched before."""
    def drain_events(self, watch: int) -> EventBatch:
        """What happened since the last call; first, and after a gap, what stands."""
    def unwatch(self, watch: int) -> None: ...

    # views
    def view(self, limit: int, under: tuple[int, int] | None = None) -> TreeView | None:
        """The `limit` heaviest subtrees, in tokens, of the tree or of the node of that name; None
        where it is gone. Decides nothing. Until 262,144 changes came without a view, each change
        counts its ancestors; the first view counts the tree."""
    def node_at(self, tokens: Keys, salt: bytes = b"") -> tuple[int, int] | None:
        """The deepest node that holds KV of the tokens, leaving one of them; None: the salt has
        nothing."""
    def most_valuable(self, limit: int) -> list[HeldState]:
        """At most `limit` of the states that stand and that nobody forks from: first those that
        open sessions wait at, then by value, then by last use; of the others none that is worth
        nothing, or from which one path leads on to another. Decides nothing; costs a look at each
        node and state."""
    def path_to(self, state: HeldState) -> tuple[bytes, Keys] | None:
        """The salt and the tokens behind which it stands, exactly; None: it does no more."""

    # maintenance
    def drain_moves(self) -> list[tuple[int, int]]:
        """Pages (from, to) whose KV the tree moved to empty a slab, in order. Copy them at once
        after allocate(), allocate_to_receive(), extend() and take_checkpoint_slot(), before
        anything is written to the ids that the call handed out. A page under an allocation is never
        moved."""
    def advance_to(self, now_ms: int) -> None:
        """Time for a policy that learns, from any origin; earlier times are ignored. A tree that
        is never called lets a second pass with every request."""
    # tiers below the arena
    def next_write(self) -> TierWrite | None:
        """The next copy to be made downwards, begun by this call. None: none waits, or there is no
        room yet. What it is to read may be evicted while it is read: then it brings nothing."""
    def label_of(
        self, write: int
    ) -> tuple[bytes, int, int | None, NDArray[np.int32], CheckpointKind]:
        """What a write that is under way brings, by its tokens: salt, tokens before what is copied,
        the tier's page that ends there, the tokens from there to the state, its kind.
        InvalidArgument of any other transfer, and of a write whose source went."""
    def restore(
        self,
        tier: int,
        tokens: Keys,
        *,
        salt: bytes,
        pages: Sequence[int],
        slot: int,
        kind: CheckpointKind,
    ) -> bool:
        """The tier has the state behind these tokens, and their KV, from before a restart. False:
        an id is another's, or the state stands already. InvalidArgument where the counts do not
        fit, or requests came before."""
    def adopt(
        self, tier: int, tokens: Keys, *, salt: bytes, kind: CheckpointKind
    ) -> tuple[list[int], int, int] | None:
        """The tier has the state behind these tokens, and their KV, since somebody else wrote them:
        its pages of the path in logical order, a tail's last, how many of them it had before, and
        its slot. None: no room, the state stands somewhere already, or KV of it is being written.
        InvalidArgument without tokens."""
    def acknowledge(self, transfer: int, is_good: bool) -> None:
        """Once for each rank, all of which are awaited. After the last one what was written is of
        use, or what was loaded is the tree's, if all are good; an allocation whose load did not
        land is void. InvalidArgument where the transfer has ended."""
    def drain_evictions(self) -> list[Eviction]:
        """Those since the last call, oldest first; at most 4096 are remembered."""
    def flush(self) -> int:
        """Evict everything unpinned; returns nodes dropped. Ghosts go too."""

def digest_instructions() -> list[str]:
    """What words can be multiplied with on this CPU, slowest first: of "scalar", "avx2",
    "avx512"."""

class RowDigester:
    """Digests rows of 64-bit words out of a memory: sum over rows of
    splitmix64(seed ^ sum(word[i] * key[i])), modulo 2^64; 0 of no rows.

    Keeps the memory alive and never copies it. Calls may run in parallel, and hold no GIL.
    """

    def __init__(
        self, memory: NDArray[np.uint8], longest: int, instructions: str | None = None
    ) -> None:
        """memory: C-contiguous, of whole words; longest: words of the longest row there will be;
        instructions: one of digest_instructions(), the fastest if None. Raises ValueError."""
    instructions: Final[str]
    def digest(
        self, offsets: NDArray[np.int64], lengths: NDArray[np.int64], seeds: NDArray[np.int64]
    ) -> int:
        """The digest [0, 2^64). [rows] each, C-contiguous: offsets and lengths in words, seeds as
        bits. Raises IndexError on a row that is not inside the memory or longer than `longest`,
        ValueError on columns of different length, before anything is read; TypeError on other
        dtypes."""

_PlacedWindow: TypeAlias = tuple[int, int, int, int, int, Sequence[int], int | None]
"""Room, generation, layers [first, end), first page, pages, slot: pages[i] holds logical page
first page + i; slot: with the state, where one travels."""

class WindowGeometry:
    """Which rows of an arena's 64-bit words a window is made of."""

    def __init__(
        self,
        layers: Sequence[tuple[Sequence[tuple[int, int, int]], Sequence[tuple[int, int, int]]]],
        page_stride: int,
        slot_stride: int,
    ) -> None:
        """layers: of each, the parts that travel of page 0, and of slot 0: where each begins, its
        length, both in words, and its key, as digest.py names parts. Parts are neighbours."""
    def rows(self, windows: Sequence[_PlacedWindow]) -> tuple[int, NDArray[np.int64]]:
        """How many rows the windows have together, and a table [5, columns] of them: offsets and
        lengths, in words, seeds, as bits, the number of each one's window, and zeros. Columns are
        as many as rows or windows, and one more where that is odd. Raises IndexError on a layer
        that there is not. REQUIRES: ids are those of an arena."""
    def pieces(
        self,
        first_layer: int,
        end_layer: int,
        pages: tuple[Sequence[int], Sequence[int]],
        slots: tuple[int, int] | None,
    ) -> NDArray[np.int64]:
        """[pieces, 3]: from which byte of this arena to which of another of its geometry, and how
        many; pages that are neighbours on both sides are one piece. pages, slots: here and there.
        Raises IndexError on a layer that there is not, ValueError unless there are as many pages
        there. REQUIRES: ids are those of an arena, lengths are whole."""

class WindowDigester:
    """Digests windows out of an arena: which rows a window is made of, and their digest, in one
    call that holds no GIL. Calls may run in parallel."""

    def __init__(self, rows: RowDigester, geometry: WindowGeometry) -> None:
        """rows: over the arena, whose geometry that is."""
    def digest_all(self, windows: Sequence[_PlacedWindow]) -> list[int]:
        """The digest [0, 2^64) of each. Raises IndexError on what is not in the arena, before
        anything outside of it is read. REQUIRES: ids are those of an arena."""

class Bell:
    """Wakes one thread that waits for any of several things: any thread rings, one waits. A ring
    that comes before wait() ends that wait; rings that nobody waited for are one."""

    def __init__(self) -> None:
        """Raises RuntimeError where the process has no descriptor left."""
    def ring(self) -> None: ...
    def watch(self, descriptor: int) -> None:
        """End a wait too while something can be read from it. REQUIRES: forget() before it is
        closed."""
    def forget(self, descriptor: int) -> None: ...
    def wait(self, seconds: float) -> bool:
        """Until somebody rings, something watched can be read, or `seconds` are over; whether it
        was one of the former. Holds no GIL."""

class StepCounter:
    """Of how many layers, of any kind, an engine has written KV and state for good since it
    started. One thread ticks; any thread reads, waits and sets alarms. The value only grows."""

    def __init__(self, report: Callable[[int, bool], None] | None = None) -> None:
        """report: called on the ticking thread with the value at each tick, and with True where a
        forward ended with it."""
    @property
    def value(self) -> int: ...
    def tick(self) -> None:
        """One more layer's KV and state are written: others may read them from now on."""
    def end_forward(self) -> None:
        """The forward whose layers ticked last has computed its last layer."""
    def end_of(self, tick: int) -> float:
        """When the forward that ticked it had ended, on the monotonic clock: inf while it runs. The
        tick's own time where nobody has reported an end yet; -inf where that is forgotten too."""
    def wait_for(self, tick: int, timeout: float) -> bool:
        """Block until the value is at least `tick` or `timeout` seconds are over; whether it
        is."""
    def time_of(self, tick: int) -> float | None:
        """When the value became `tick`, on the monotonic clock; None if too long ago or yet to
        come."""
    def times_of(self, first: int, end: int) -> list[float | None]:
        """time_of() of ticks [first, end)."""
    def ring_at(self, bell: Bell, tick: int | None) -> bool:
        """Ring it at every tick from `tick` on, instead of from where it did before; None:
        never. Whether that tick has come already: one that comes after this rings."""

class CudaContext:
    """A GPU's primary context, which torch uses too."""

    def __init__(self, device: int) -> None:
        """device: its index in this process. Raises RuntimeError where there is no such GPU."""

class StreamTicks:
    """Ticks a counter on a thread of its own, which holds no GIL, once what a stream was given has
    ended, in the order of the calls. One thread calls."""

    def __init__(self, context: CudaContext, steps: StepCounter) -> None: ...
    def tick_behind(self, stream: int) -> None:
        """Raises RuntimeError, also where an earlier call's work failed."""
    def end_behind(self, stream: int) -> None:
        """Likewise, for the end of a forward."""

_Kernel: TypeAlias = tuple[int, int, int]
"""The driver's handle, warps, bytes of shared memory."""

class GpuDigester:
    """Digests windows out of an arena in a GPU's memory; holds no GIL. Any thread, one at a
    time."""

    def __init__(
        self,
        context: CudaContext,
        sum: _Kernel,
        mix: _Kernel,
        parts: int,
        words: int,
        keys: int,
        geometry: WindowGeometry,
    ) -> None:
        """sum, mix, parts: the kernels of digest_kernel.py, and programs for a row. words, keys:
        addresses on the device, of the arena and of keys of the longest row, which outlive this.
        Raises RuntimeError."""
    def digest_all(self, windows: Sequence[_PlacedWindow]) -> list[int]:
        """The digest [0, 2^64) of each, once the GPU has answered, on a stream of its own. Raises
        IndexError on a layer that there is not, RuntimeError where the GPU fails. REQUIRES: ids are
        those of the arena."""
    def digest(
        self, offsets: NDArray[np.int64], lengths: NDArray[np.int64], seeds: NDArray[np.int64]
    ) -> int:
        """The same of rows anywhere in the arena, as RowDigester.digest takes them."""

def piece_table_words(pieces: int) -> int:
    """Length of the table of that many pieces, in int64 words."""

def fill_piece_table(table: NDArray[np.int64], pieces: NDArray[np.int64], chunk_bytes: int) -> int:
    """Write what a launch of the store kernel reads; how many chunks of `chunk_bytes` it has.

    table [at least piece_table_words(len(pieces))]: how many programs are done, padding, then
    columns: local, remote and length of each piece in units of 16 bytes, and the chunk it begins
    with, to which the number of chunks is added. pieces [n, 3]. Raises ValueError. REQUIRES: pieces
    are multiples of 16."""

class Mailbox:
    """The reading end of datagrams between processes of one host. One thread at a time; nothing
    blocks. What does not bear the secret is dropped; a writer's datagrams arrive in order, each
    once."""

    def __init__(self, name: str, secret: bytes) -> None:
        """name: abstract, of no file. Raises RuntimeError."""
    @property
    def descriptor(self) -> int:
        """Readable while something has come; -1 once closed."""
    @property
    def dropped(self) -> int: ...
    def read(self) -> list[bytes]:
        """All that has come since the last call."""
    def close(self) -> None:
        """Idempotent; writers see it with their next word."""

class WriteLease:
    """Until when a peer wants to be written to."""

    def __init__(self) -> None:
        """It has ended."""
    @property
    def holds(self) -> bool:
        """At this moment."""
    def extend(self, until: float) -> None:
        """On the monotonic clock."""

class AskedDigest:
    """A window's digest, now or later."""

    @property
    def done(self) -> bool: ...
    def result(self) -> int:
        """Raises RuntimeError where it could not be digested. REQUIRES: done."""

class DigestQueue:
    """Digests windows that leave on a thread of its own, which holds no GIL: all that wait, in one
    call."""

    def __init__(self, digester: GpuDigester) -> None: ...
    def ring_at_answers(self, bell: Bell) -> None:
        """Also ring this from now on, whenever some of what was asked is answered."""

class PeerEndpoint:
    """A peer's arena, mapped here, and its mailbox."""

    def __init__(
        self,
        mailbox: str,
        secret: bytes,
        arena: int,
        arena_bytes: int,
        gate: int,
        permission: int,
    ) -> None:
        """arena, gate: addresses in this process. Raises RuntimeError where nobody reads the
        mailbox."""

class PeerOutcome:
    """REFUSED, CANCELLED, UNLEASED, OUTSIDE, MISALIGNED: nothing of it was given to the GPU.
    FAILED: it may have landed, or land. DONE: stored, and announced."""

    PENDING: ClassVar[PeerOutcome]
    DONE: ClassVar[PeerOutcome]
    REFUSED: ClassVar[PeerOutcome]
    CANCELLED: ClassVar[PeerOutcome]
    UNLEASED: ClassVar[PeerOutcome]
    OUTSIDE: ClassVar[PeerOutcome]
    MISALIGNED: ClassVar[PeerOutcome]
    FAILED: ClassVar[PeerOutcome]

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> int: ...

class PeerTransfer:
    """A posted window. Any thread reads."""

    @property
    def outcome(self) -> PeerOutcome: ...
    @property
    def why(self) -> str:
        """It was refused or failed; empty otherwise."""
    @property
    def ended_at(self) -> float | None:
        """On the monotonic clock; None while it is pending."""
    @property
    def posted_at(self) -> float | None:
        """When it was given to the GPU, on the monotonic clock; None before that."""
    @property
    def digest(self) -> AskedDigest | None:
        """Of what was held."""
    def release(self) -> None:
        """Nobody asks any more: what was not announced yet never is."""

class PeerWriter:
    """Stores windows into peers' memory by a GPU's kernel, sees when they are stored and announces
    them, on a thread of its own, which holds no GIL. Any thread calls."""

    def __init__(
        self,
        context: CudaContext,
        store: _Kernel,
        programs: int,
        turn: int,
        chunk_bytes: int,
        source: int,
        source_bytes: int,
    ) -> None:
        """store, programs, turn, chunk_bytes: as store_kernel.py. source: the arena's address.
        Raises RuntimeError."""
    def ring_at_ends(self, bell: Bell) -> None:
        """Also ring this from now on, whenever something posted has ended."""
    def post(
        self, endpoint: PeerEndpoint, writes: Sequence[tuple[NDArray[np.int64], bytes]]
    ) -> list[PeerTransfer]:
        """Pieces [n, 3] and what announces them, of each window; in order. No piece: a notification
        alone. What fits one table is stored by one launch; what could not be posted has ended."""
    def hold(
        self,
        endpoint: PeerEndpoint,
        writes: Sequence[tuple[NDArray[np.int64], bytes, int, _PlacedWindow]],
        steps: StepCounter,
        lease: WriteLease,
        digests: DigestQueue,
    ) -> list[PeerTransfer]:
        """The same with the tick from which on each may be posted, and what is digested then: the
        thread here posts it once `steps` are there, where the lease holds at that moment."""
    def cancel(self, transfer: PeerTransfer) -> None:
        """Post it no more, if it was not yet."""
    def disconnect(self, endpoint: PeerEndpoint) -> None:
        """Block until no kernel writes to the peer. What was not announced fails. Idempotent.
        Raises RuntimeError where the GPU fails."""
    def stop(self) -> None:
        """Block until nothing is on its way any more, or the GPU has failed. Idempotent."""
