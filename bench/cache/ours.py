"""Times tasuki's prefix tree through its Python interface. Run as a script: prints one JSON
object."""

import json
import sys
from array import array
from functools import partial
from typing import Any

import numpy as np
from timing import CLOCK_NS, heap_bytes, median_us, now, percentile_us, quiet
from workloads import (
    CHILDREN,
    CHUNK,
    CROWDS,
    LENGTHS,
    PAGE,
    SCALES,
    SHORT_BATCH,
    STRANGERS,
    TAILS,
    Agents,
    Bushes,
    Crowd,
    Tokens,
    prompt,
    short_prompts,
)

from tasuki.pycache._cpp_cache import (
    Allocation,
    CheckpointKind,
    PrefixCache,
    TierConfig,
    TreeConfig,
)

PAGES_PER_SLAB = 24
KIND = CheckpointKind.TURN_END
Row = dict[str, float]


def tree_shape(tokens: int, states: int, policy: str = "lru") -> dict[str, Any]:
    return {
        "slabs": tokens // (PAGE * PAGES_PER_SLAB) + states + 64,
        "blocks_per_slab": PAGES_PER_SLAB * 8,
        "pages_per_slab": PAGES_PER_SLAB,
        "policy": policy,
        "attention_cost": 3e-5,
    }


def tree_for(tokens: int, states: int, policy: str = "lru") -> PrefixCache:
    return PrefixCache(TreeConfig(**tree_shape(tokens, states, policy)))


def allocated_for(tree: PrefixCache, tokens: Tokens, cursor: int | None = None) -> Allocation:
    allocation = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1, cursor=cursor)
    assert allocation is not None
    return allocation


def keep(tree: PrefixCache, tokens: Tokens, cursor: int | None = None) -> None:
    allocation = allocated_for(tree, tokens, cursor)
    tree.insert(allocation, len(tokens), allocation.working_slots[0], KIND)
    tree.release(allocation)


def keep_chunked(tree: PrefixCache, tokens: Tokens) -> int:
    """Insert a prompt chunk by chunk, with a recurrent state at each chunk's end. Returns the
    nanoseconds of all calls together."""
    start = now()
    allocation = allocated_for(tree, tokens)
    for end in range(CHUNK, len(tokens) + 1, CHUNK):
        tree.insert(allocation, end, tree.take_checkpoint_slot(allocation), KIND)
    tree.release(allocation)
    return now() - start


def lengths(row: Row) -> None:
    for count in LENGTHS:
        tree = tree_for(2 * count, 512)
        whole, chunked = prompt(count, count), prompt(count + 1, count)
        keep(tree, whole)
        row[f"insert {count} in {CHUNK}s, us"] = keep_chunked(tree, chunked) / 1e3
        assert tree.match(chunked).kv_tokens == count
        repeats = 200 if count < 1_000_000 else 40
        for name, asked in (("", whole), (" chunked", chunked)):
            spent = median_us(partial(tree.match, asked), repeats)
            row[f"match {count}{name}, ns/token"] = spent * 1e3 / count


def agents(
    row: Row,
    sessions: int,
    *,
    label: str,
    cursors: bool,
    policy: str = "lru",
    stream: str | None = None,
) -> None:
    """Measure sessions of agents. `stream`: name of an event stream watched during the measurement;
    None: no stream is watched."""
    work = Agents(sessions)
    tree = tree_for(sessions * 62_000, sessions * 16, policy)
    if stream is not None:
        tree.drain_events(tree.watch(stream, 1 << 20))
    places = [tree.open_cursor() for _ in range(sessions)] if cursors else None
    matches, publishes, totals, pairs = [], [], [], []
    hit = asked = 0
    for turn in work:
        tokens = turn.log[: turn.prompt]
        answer = turn.log[turn.prompt : turn.end]
        cursor = places[turn.session] if places else None
        start = now()
        match = tree.match(tokens, b"", cursor)
        matches.append(now() - start)
        hit += match.usable_tokens
        asked += match.prompt_tokens
        start = now()
        allocation = tree.allocate(tokens, capacity_tokens=turn.end, working_slots=1, cursor=cursor)
        allocated = now()
        tree.append(allocation, answer)
        slot = allocation.working_slots[0]
        before = now()
        tree.insert(allocation, turn.end, slot, KIND)
        after = now()
        tree.release(allocation)
        end = now()
        publishes.append(after - before)
        pairs.append((allocated - start) + (end - after) - CLOCK_NS)
        totals.append(end - start - 4 * CLOCK_NS)
    late = slice(sessions, None)
    row[f"{label}: match p50, us"] = percentile_us(matches[late], 50)
    row[f"{label}: match p99, us"] = percentile_us(matches[late], 99)
    row[f"{label}: publish p50, us"] = percentile_us(publishes[late], 50)
    row[f"{label}: publish p99, us"] = percentile_us(publishes[late], 99)
    row[f"{label}: lease + release p50, us"] = percentile_us(pairs[late], 50)
    row[f"{label}: first turn p50, us"] = percentile_us(totals[:sessions], 50)
    row[f"{label}: turns/s"] = len(totals) / sum(totals) * 1e9
    row[f"{label}: hit rate"] = hit / asked


def bushes(row: Row, work: Bushes, *, label: str) -> None:
    prompts = list(work)
    slabs = work.tokens // (PAGE * PAGES_PER_SLAB) + work.heads * work.leaves + 64
    tree = PrefixCache(
        TreeConfig(slabs=slabs, blocks_per_slab=PAGES_PER_SLAB, pages_per_slab=PAGES_PER_SLAB)
    )
    inserts, publishes = array("q", bytes(8 * len(prompts))), array("q", bytes(8 * len(prompts)))
    before = heap_bytes()
    for i, tokens_ in enumerate(prompts):
        start = now()
        allocation = allocated_for(tree, tokens_)
        slot = allocation.working_slots[0]
        middle = now()
        tree.insert(allocation, len(tokens_), slot, KIND)
        published = now()
        tree.release(allocation)
        inserts[i] = now() - start - 2 * CLOCK_NS
        publishes[i] = published - middle
    row[f"{label}: bytes a node beside 4 a token"] = (
        heap_bytes() - before - 4 * work.tokens
    ) / work.nodes
    row[f"{label}: insert p50, us"] = percentile_us(publishes, 50)
    row[f"{label}: allocation + insert + release p50, us"] = percentile_us(inserts, 50)
    row[f"{label}: allocation + insert + release p99, us"] = percentile_us(inserts, 99)
    sample = np.random.default_rng(4).permutation(len(prompts))[:2_000]
    matches, pairs = [], []
    for i in sample:
        asked = prompts[i].copy()  # in the core's cache, as after a tokenizer; the tree is not
        start = now()
        tree.match(asked)
        matches.append(now() - start)
    row[f"{label}: match p50, us"] = percentile_us(matches, 50)
    for i in sample:
        asked = prompts[i].copy()
        start = now()
        tree.release(allocated_for(tree, asked))
        pairs.append(now() - start)
    row[f"{label}: lease + release p50, us"] = percentile_us(pairs, 50)
    evict(row, tree, label)


def evict(row: Row, tree: PrefixCache, label: str) -> None:
    spare = tree.stats().slabs_free
    # One page and all the free slots, so the next slot needs an eviction.
    allocation = tree.allocate(np.zeros(1, np.int32), capacity_tokens=1, working_slots=spare - 1)
    assert allocation is not None
    taken = []
    for _ in range(min(1_000, tree.stats().checkpoints // 4)):
        start = now()
        slot = tree.take_checkpoint_slot(allocation)
        taken.append(now() - start)
        assert slot is not None
    row[f"{label}: evict one checkpoint p50, us"] = percentile_us(taken, 50)
    nodes = tree.stats().nodes
    start = now()
    tree.flush()
    spent = now() - start
    row[f"{label}: bulk eviction, leaves/s"] = (nodes - tree.stats().nodes) / spent * 1e9


def shorts(row: Row) -> None:
    batches = short_prompts(40)
    tree = tree_for(40 * 64 * 256, 40 * 64 * 2)
    for name in ("cold", "repeated"):
        spent = []
        for batch in batches:
            start = now()
            allocations = [
                tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1)
                for tokens in batch
            ]
            for tokens, allocation in zip(batch, allocations, strict=True):
                tree.insert(allocation, len(tokens), allocation.working_slots[0], KIND)
                tree.release(allocation)
            spent.append(now() - start)
        each = percentile_us(spent, 50) / SHORT_BATCH
        row[f"256 tokens, 64 at a time, {name}: a request, us"] = each
    spent = []
    for batch in batches:
        start = now()
        for tokens in batch:
            tree.match(tokens)
        spent.append(now() - start)
    row["256 tokens, 64 at a time: match, us"] = percentile_us(spent, 50) / SHORT_BATCH


def blocked(row: Row) -> None:
    """Measure the cost of a waiting request in each engine step. The request is too large for the
    free memory."""
    tree = tree_for(200_000, 4)
    live = allocated_for(tree, prompt(1, 200_000))
    big = prompt(2, 200_000)

    def attempt() -> None:
        assert tree.allocate(big, capacity_tokens=len(big), working_slots=1) is None

    row["first refusal of 200,000 tokens, us"] = median_us(attempt, 20)
    refused_at = tree.room_version
    row["a blocked request of 200,000 tokens adds a step, us"] = median_us(
        lambda: tree.room_version == refused_at, 2_000
    )
    tree.release(live)


def crowded(row: Row, crowd: Crowd, count: int, *, label: str, policy: str = "lru") -> None:
    """Measure the cost of one more prompt, in addition to `count` prompts below the same tree node.
    Each of the `count` prompts has an open session."""
    tree = tree_for((count + 3 * STRANGERS) * 2 * PAGE, count + 3 * STRANGERS, policy)
    keep(tree, crowd.start[: crowd.shared])
    for tokens in crowd.prompts(0, count):
        keep(tree, tokens, tree.open_cursor())
    matches, requests, closings = [], [], []
    for tokens in crowd.prompts(count, STRANGERS):
        start = now()
        tree.match(tokens)
        matches.append(now() - start)
        start = now()
        keep(tree, tokens)
        requests.append(now() - start)
    for tokens in crowd.prompts(count + STRANGERS, STRANGERS):
        cursor = tree.open_cursor()
        keep(tree, tokens, cursor)
        start = now()
        tree.close_cursor(cursor)
        closings.append(now() - start)
    row[f"{label}: match p50, us"] = percentile_us(matches, 50)
    row[f"{label}: a request p50, us"] = percentile_us(requests, 50)
    row[f"{label}, a session each: close one p50, us"] = percentile_us(closings, 50)


def crowds(row: Row, counts: tuple[int, ...]) -> None:
    for policy, name in (("lru", ""), ("value", ", policy value")):
        for count in counts:
            label = f"{count} tails on one node{name}"
            crowded(row, TAILS, count, label=label, policy=policy)
        for count in counts:
            label = f"{count} children on one node{name}"
            crowded(row, CHILDREN, count, label=label, policy=policy)


_BELOW_PAGES = 16
_BELOW_PROMPTS = 400
"""Approximate number of prompts the arena has space for."""


def below(row: Row, *, tiers: int, label: str) -> None:
    """Measure a tree with a slower memory tier below the arena. tiers: size of the tier's content,
    as a multiple of the arena; 0: no tier."""
    tokens = _BELOW_PAGES * PAGE
    shape = tree_shape(_BELOW_PROMPTS * tokens, _BELOW_PROMPTS)
    shape["tiers"] = [TierConfig(slabs=(tiers + 1) * shape["slabs"])] if tiers else []
    tree = PrefixCache(TreeConfig(**shape))
    prompts = [prompt(50_000 + i, tokens) for i in range(_BELOW_PROMPTS * max(1, tiers))]
    for asked in prompts:
        keep(tree, asked)
        while (write := tree.next_write()) is not None:
            tree.acknowledge(write.id, True)
    held = tree.stats().tiers
    if tiers:
        copies = held[0].pages.tree / tree.stats().pages.tree
        assert copies > 0.9 * tiers, copies
    spent = []
    for asked in prompts[-_BELOW_PROMPTS // 4 :] * 8:
        # A match ends before the last token.
        asked = np.append(asked, np.int32(1))
        start = now()
        tree.match(asked)
        allocation = allocated_for(tree, asked)
        spent.append(now() - start)
        assert allocation.match.usable_tokens > 0
        tree.release(allocation)
    row[f"{label}: match + allocate p50, us"] = percentile_us(spent, 50)


def main(full: bool) -> None:
    quiet()
    row: Row = {}
    lengths(row)
    sessions = 200 if full else 40
    agents(row, sessions, label="agents with session", cursors=True)
    agents(row, sessions, label="agents without session", cursors=False)
    agents(row, sessions, label="agents with session, policy auto", cursors=True, policy="auto")
    agents(row, sessions, label="agents with session, watched", cursors=True, stream="all")
    bushes(row, Bushes(1_000 if full else 100, 120), label="121K nodes")
    shorts(row)
    blocked(row)
    below(row, tiers=0, label="16 pages, no tier")
    below(row, tiers=10, label="16 pages, 10x below in the host")
    crowds(row, CROWDS if full else CROWDS[:2])
    for nodes in SCALES if full else SCALES[:2]:
        bushes(row, Bushes(max(1, nodes // 121), 120, PAGE, PAGE), label=f"{nodes} nodes")
    print(json.dumps(row))


if __name__ == "__main__":
    main(full="--quick" not in sys.argv)
