"""The logical side of the cache: radix tree, slabs, allocations, eviction. Knows ids, never memory.
Beside it the digests of memory, which know neither tree nor ids.

Single-threaded: only the engine loop calls it; digests may be taken on any thread. Token arrays are
one-dimensional, C-contiguous int32.
"""

from collections.abc import Iterator
from enum import Enum

import numpy as np
from numpy.typing import NDArray

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

class TreeConfig:
    """slabs: slabs in the arena; blocks_per_slab: stride of page ids; pages_per_slab: pages one
    slab holds; policy: who is evicted, lru, value, auto, or marconi
    (for comparison); attention_cost: prefill cost of
    a token for each token before it, where the token alone costs 1."""

    def __init__(
        self,
        *,
        slabs: int,
        blocks_per_slab: int,
        pages_per_slab: int,
        max_ghost_nodes: int = 4096,
        policy: str = "lru",
        attention_cost: float = 0.0,
    ) -> None: ...
    @property
    def slabs(self) -> int: ...
    @property
    def blocks_per_slab(self) -> int: ...
    @property
    def pages_per_slab(self) -> int: ...
    @property
    def max_ghost_nodes(self) -> int: ...
    @property
    def policy(self) -> str: ...
    @property
    def attention_cost(self) -> float: ...

class MissReasons:
    """Why prompt tokens were not usable. usable_tokens + sum of all fields == prompt_tokens."""

    @property
    def new(self) -> int: ...
    @property
    def never_checkpointed(self) -> int: ...
    @property
    def checkpoint_evicted(self) -> int: ...
    @property
    def kv_evicted(self) -> int: ...
    @property
    def alignment(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    def as_dict(self) -> dict[str, int]: ...

class EvictedCheckpoint:
    """The deepest state of a prompt that is gone, and what took it."""

    @property
    def eviction(self) -> int:
        """Sequence number of the Eviction."""
    @property
    def boundary(self) -> int:
        """Tokens that it covered."""
    @property
    def pages_since(self) -> int:
        """Freed by that eviction and all later ones: an arena larger by as much had kept it, as far
        as evictions go by age."""

class Eviction:
    """One decision of the policy."""

    @property
    def sequence(self) -> int:
        """1, 2, 3, ... over the tree's life."""
    @property
    def kind(self) -> str:
        """pages, checkpoint or tail."""
    @property
    def checkpoint_kind(self) -> CheckpointKind | None: ...
    @property
    def boundary(self) -> int:
        """Tokens from the root to its end."""
    @property
    def pages(self) -> int:
        """Freed; of a state those its slot is worth."""
    @property
    def score(self) -> float | None:
        """What the policy held it to be worth, a page; None of one that goes by age."""
    @property
    def allocation(self) -> int | None:
        """That needed the room; None: a flush."""

class PageMatch:
    """A match as it were if the tree knew whole pages only: equal for any two prompts that agree
    with the tree in the same whole pages, whatever they have in common inside the next one."""

    @property
    def kv_tokens(self) -> int: ...
    @property
    def usable_tokens(self) -> int: ...
    @property
    def checkpoint_kind(self) -> CheckpointKind | None: ...
    @property
    def miss_reasons(self) -> MissReasons:
        """usable_tokens + sum of all fields == the prompt's tokens."""

class Match:
    """A read-only answer of the tree; holds nothing."""

    @property
    def prompt_tokens(self) -> int: ...
    @property
    def kv_tokens(self) -> int:
        """Tokens of the prompt whose KV stands in the tree (page multiple, or exact where a tail
        matches)."""
    @property
    def usable_tokens(self) -> int:
        """Tokens up to the deepest usable checkpoint; at most prompt_tokens - 1."""
    @property
    def checkpoint_kind(self) -> CheckpointKind | None: ...
    @property
    def branch_tokens(self) -> int | None:
        """Where this prefill should leave a checkpoint since KV reaches deeper than state, if
        anywhere."""
    @property
    def miss_reasons(self) -> MissReasons: ...
    @property
    def in_pages(self) -> PageMatch: ...
    @property
    def lost(self) -> EvictedCheckpoint | None:
        """The deepest state of the prompt that was evicted, where its eviction is remembered."""
    @property
    def interior_tokens(self) -> list[int]:
        """Of an allocation's match: where states inside a long first-seen prompt would pay."""

class Allocation:
    """What one request holds. Returned by allocate() and allocate_to_receive(); a handle, released
    exactly once."""

    @property
    def id(self) -> int: ...
    @property
    def generation(self) -> int:
        """Monotone over the tree's life: ids granted under another generation have another
        owner."""
    @property
    def match(self) -> Match:
        """The match this allocation was cut from."""
    @property
    def cached_tokens(self) -> int:
        """Tokens that need no forward: usable_tokens for allocate(), KV held (page multiple) for
        allocate_to_receive()."""
    @property
    def cow_source_slot(self) -> int | None:
        """Checkpoint to fork into working_slots[0]; None means: zero it (or, for a receiver, await
        it)."""
    @property
    def tail_copy(self) -> tuple[int, int] | None:
        """(tree page, own page) to copy before the first forward, where cached_tokens is inside a
        page."""
    @property
    def source_page(self) -> int | None:
        """The tree's page that holds the tokens after the last whole page of cached_tokens; None
        where there are none."""
    @property
    def shared_pages(self) -> int:
        """The first so many of pages belong to the tree (pinned, read-only)."""
    @property
    def pages(self) -> NDArray[np.int32]:
        """Page ids in logical order: tree pages, then own. Read-only; only extend() adds some."""
    @property
    def working_slots(self) -> list[int]: ...
    @property
    def tokens(self) -> int:
        """Tokens known to the allocation: the prompt and what append() added."""
    @property
    def capacity_tokens(self) -> int: ...

class PoolCounts:
    """free + working + tree + granted + quarantined == total; pinned counts tree items under a
    allocation."""

    @property
    def free(self) -> int: ...
    @property
    def working(self) -> int: ...
    @property
    def tree(self) -> int: ...
    @property
    def granted(self) -> int: ...
    @property
    def quarantined(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def pinned(self) -> int: ...

class TreeStats:
    @property
    def pages(self) -> PoolCounts: ...
    @property
    def slots(self) -> PoolCounts: ...
    @property
    def slabs_free(self) -> int: ...
    @property
    def slabs_of_pages(self) -> int: ...
    @property
    def slabs_of_slots(self) -> int: ...
    @property
    def slabs_total(self) -> int: ...
    @property
    def nodes(self) -> int: ...
    @property
    def ghost_nodes(self) -> int: ...
    @property
    def checkpoints(self) -> int: ...
    @property
    def allocations(self) -> int: ...
    @property
    def cursors(self) -> int: ...
    @property
    def evicted_pages(self) -> int:
        """Counter over the tree's life."""
    @property
    def evicted_checkpoints(self) -> int: ...
    @property
    def allocated_requests(self) -> int:
        """Counter of allocations cut by allocate() (not allocate_to_receive())."""
    @property
    def prompt_tokens(self) -> int:
        """Sum over allocations cut by allocate()."""
    @property
    def usable_tokens(self) -> int: ...
    @property
    def lost(self) -> MissReasons:
        """Counters by cause; prompt_tokens == usable_tokens + sum of these."""
    @property
    def policies(self) -> dict[str, float]:
        """Of auto: what each candidate would have saved of late, prefill of one token is 1; the
        last thousand requests of the sample count most."""

class EventGap:
    """The watcher was too slow: its stream's events first_lost..resync_from are not sent one by
    one."""

    @property
    def first_lost(self) -> int: ...
    @property
    def resync_from(self) -> int: ...

class CacheEvent:
    """One change of what the tree keeps. A prefix is named by a hash: see prefix_hashes()."""

    @property
    def sequence(self) -> int:
        """1, 2, 3, ... in its stream; in a snapshot the batch's."""
    @property
    def kind(self) -> str:
        """page_stored, page_removed, checkpoint_stored, checkpoint_removed or cleared."""
    @property
    def checkpoint_kind(self) -> CheckpointKind | None:
        """Of checkpoint_stored."""
    @property
    def tokens(self) -> int:
        """Of the prefix: a multiple of PAGE_TOKENS but for the checkpoint of a tail, whose partial
        page comes and goes with it."""
    @property
    def prefix(self) -> bytes | None:
        """16 bytes; None of cleared."""
    @property
    def page(self) -> list[int]:
        """Tokens of a stored page in the spelled stream; empty elsewhere."""
    @property
    def parent(self) -> bytes | None:
        """The prefix of whole pages before this one's last page or part of one."""
    @property
    def namespace(self) -> bytes | None:
        """The name of the empty prefix under the same salt; None of cleared."""

class EventBatch:
    """Changes in order, or a snapshot. A value: iterate it on any thread, at any time."""

    @property
    def sequence(self) -> int:
        """Every change of the stream up to it was drained."""
    @property
    def is_snapshot(self) -> bool:
        """Forget all that was drained before: these *_stored events are all that stands, parents
        first. The first batch of a watch is one, and so is one with a gap."""
    @property
    def gap(self) -> EventGap | None: ...
    def packed(self) -> tuple[NDArray[np.uint64], bytes, NDArray[np.int32]]:
        """The same as plain values (packed_events.py): numbers, of each event its sequence, kind,
        1 + the checkpoint's kind or 0, tokens and tokens of its page; three names of 16 bytes of
        each, prefix, parent and namespace; and the pages' tokens."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[CacheEvent]: ...

class Standing:
    """What of a subtree, its top included, is resident."""

    @property
    def tokens(self) -> int:
        """Of whole pages."""
    @property
    def nodes(self) -> int: ...
    @property
    def states(self) -> int: ...

class ViewedNode:
    @property
    def name(self) -> tuple[int, int] | None:
        """For view(under=...), as long as the node lives. None: all namespaces together."""
    @property
    def above(self) -> int | None:
        """Its parent's place in the view; None of the first."""
    @property
    def depth(self) -> int:
        """Tokens from the root to its end."""
    @property
    def tokens(self) -> int:
        """Of its own run, a multiple of PAGE_TOKENS."""
    @property
    def children(self) -> int:
        """Resident ones, in the view or not."""
    @property
    def state(self) -> CheckpointKind | None:
        """The checkpoint at its end."""
    @property
    def tails(self) -> int:
        """States inside the page that follows."""
    @property
    def allocations(self) -> int:
        """Requests that stand here."""
    @property
    def state_pins(self) -> int:
        """Requests that fork from its states."""
    @property
    def is_protected(self) -> bool:
        """A request stands here or below."""
    @property
    def unused(self) -> int:
        """Mutating calls since its pages were last used."""
    @property
    def standing(self) -> Standing:
        """It and all below."""
    @property
    def hidden(self) -> Standing:
        """What is below it and not in the view."""

class TreeView:
    """Parents come before their children. A value: iterate it on any thread, at any time."""

    def packed(self) -> NDArray[np.uint64]:
        """The same as plain values (packed_tree.py): a row a node, of its name's two numbers,
        above, depth, tokens, children, state, tails, allocations, state_pins, is_protected, unused,
        standing's three and hidden's. Name, above and state are 1 + their value, or 0."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[ViewedNode]: ...

def prefix_hashes(tokens: NDArray[np.int32], salt: bytes = b"") -> list[bytes]:
    """The names that events give to the prefixes of tokens under that salt: of nothing, of each
    run of whole pages, and, where tokens end inside a page, of all of them. 16 bytes each, equal
    in every process."""

class PrefixCache:
    def __init__(self, config: TreeConfig) -> None: ...
    @property
    def config(self) -> TreeConfig: ...
    @property
    def policy(self) -> str:
        """Who chooses victims now: under auto, lru or value, whichever does best."""

    # ask
    def match(
        self, tokens: NDArray[np.int32], salt: bytes = b"", cursor: int | None = None
    ) -> Match:
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
        tokens: NDArray[np.int32],
        *,
        salt: bytes = b"",
        capacity_tokens: int,
        working_slots: int,
        cursor: int | None = None,
    ) -> Allocation | None:
        """Pin the match, take own pages up to capacity_tokens and working slots, all or nothing:
        None says that it will fit once others release. Raises ImpossibleRequest."""
    def allocate_to_receive(
        self,
        tokens: NDArray[np.int32],
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
    def allocate_to_send(
        self, tokens: NDArray[np.int32], *, salt: bytes = b""
    ) -> Allocation | None:
        """Pin what is usable of the prompt, to be read by a sender: pages up to the last whole one,
        source_page and cow_source_slot. Takes no page and no slot; counts as no request. None:
        nothing is usable."""
    def extend(self, allocation: Allocation, capacity_tokens: int) -> bool:
        """More own pages, all or nothing."""
    def append(self, allocation: Allocation, tokens: NDArray[np.int32]) -> None:
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
    def node_at(self, tokens: NDArray[np.int32], salt: bytes = b"") -> tuple[int, int] | None:
        """The deepest node that holds KV of the tokens, leaving one of them; None: the salt has
        nothing."""

    # maintenance
    def drain_moves(self) -> list[tuple[int, int]]:
        """Pages (from, to) whose KV the tree moved to empty a slab, in order. Copy them at once
        after allocate(), allocate_to_receive(), extend() and take_checkpoint_slot(), before
        anything is written to the ids that the call handed out. A page under an allocation is never
        moved."""
    def advance_to(self, now_ms: int) -> None:
        """Time for a policy that learns, from any origin; earlier times are ignored. A tree that
        is never called lets a second pass with every request."""
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
    @property
    def instructions(self) -> str: ...
    def digest(
        self, offsets: NDArray[np.int64], lengths: NDArray[np.int64], seeds: NDArray[np.int64]
    ) -> int:
        """The digest [0, 2^64). [rows] each, C-contiguous: offsets and lengths in words, seeds as
        bits. Raises IndexError on a row that is not inside the memory or longer than `longest`,
        ValueError on columns of different length, before anything is read; TypeError on other
        dtypes."""
