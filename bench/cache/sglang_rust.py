"""Times the Rust prefix-tree core of SGLang's wheel through its own binding. Prints one JSON
object.

Usage: sglang_rust.py FOLDER [--quick]; FOLDER holds the `sglang` package of the wheel. Runs in the
peer's own virtual environment. KV pools are fakes and only count tokens. The binding takes 64-bit
arrays, built outside the timed calls.
"""

import importlib.util
import json
import sys
from array import array
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import CLOCK_NS, heap_bytes, median_us, now, percentile_us, quiet
from workloads import (
    CHILDREN,
    CHUNK,
    CROWDS,
    LENGTHS,
    PAGE,
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

Row = dict[str, float]
KV, STATE = 0, 2


def load(folder: str) -> Any:
    [library] = Path(folder).glob("sglang/srt/mem_cache/rust_tree_core/mem_cache*.so")
    spec = importlib.util.spec_from_file_location("mem_cache", library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def key_of(tokens: Tokens) -> "array[int]":
    return array("q", tokens.astype(np.int64).tobytes())


class Tree:
    """SGLang's tree, with its calls under the names used by the measurements."""

    def __init__(self, module: Any, page: int = PAGE) -> None:
        self._module = module
        self._core = module.RustUnifiedTreeCoreBinding(
            module.TreeCoreInitParamsBinding(
                eviction_policy="lru", page_size=page, device="cpu", mamba_cache_chunk_size=page
            ),
            [KV, STATE],
        )
        self._states = 0

    def state(self) -> torch.Tensor:
        self._states += 1
        return torch.tensor([self._states])

    def insert(self, key: Any, pages: torch.Tensor, state: torch.Tensor, known: int = 0) -> None:
        self._core.insert(
            self._module.InsertParamsBinding(
                key=key, value=pages, mamba_value=state, prev_prefix_len=known
            )
        )

    def match(self, key: Any) -> tuple[int, Any]:
        found = self._core.match_prefix(self._module.MatchParamsBinding(key=key))
        return found.device_prefix_len, found.best_match_node_id

    def lock(self, node: Any) -> Any:
        return self._core.inc_lock_ref(node, [])

    def unlock(self, node: Any, lock: Any) -> None:
        release = self._module.DecLockRefParamsBinding(
            node_id=lock.node_id,
            skipped_lock_components=[],
            component_lock_uuids={},
            component_host_lock_uuids={},
        )
        self._core.dec_lock_ref(node, release, False)

    def evict(self, component: int, count: int) -> int:
        freed = 0
        self._core.evict_device_start(component, count)
        while freed < count:
            step = self._core.evict_device_next_node(component, {KV: 0, STATE: 0})
            freed += step.tracker.get(component, 0)
            if step.node_id is not None:
                step = self._core.evict_device_leaf(step.node_id)
                freed += step.tracker.get(component, 0)
            elif not step.made_progress:
                break
        self._core.evict_device_end(component)
        return freed


def lengths(row: Row, module: Any) -> None:
    for count in LENGTHS:
        tree = Tree(module)
        whole, chunked = key_of(prompt(count, count)), key_of(prompt(count + 1, count))
        pages = torch.arange(count, dtype=torch.int64)
        tree.insert(whole, pages, tree.state())
        spent = 0
        for end in range(CHUNK, count + 1, CHUNK):
            key, value, state = chunked[:end], pages[:end], tree.state()
            start = now()
            tree.insert(key, value, state, end - CHUNK)
            spent += now() - start
        row[f"insert {count} in {CHUNK}s, us"] = spent / 1e3
        repeats = 20 if count < 1_000_000 else 7
        assert tree.match(whole)[0] == count
        for name, asked in (("", whole), (" chunked", chunked)):
            spent = median_us(partial(tree.match, asked), repeats)
            row[f"match {count}{name}, ns/token"] = spent * 1e3 / count


def agents(row: Row, module: Any, sessions: int) -> None:
    tree = Tree(module)
    matches, inserts, pairs, totals = [], [], [], []
    hit = asked = 0
    for turn in Agents(sessions):
        asking, known = key_of(turn.log[: turn.prompt]), key_of(turn.log[: turn.end])
        pages, state = torch.arange(turn.end, dtype=torch.int64), tree.state()
        start = now()
        matched, node = tree.match(asking)
        found = now()
        lock = tree.lock(node)
        locked = now()
        tree.insert(known, pages, state, matched)
        inserted = now()
        tree.unlock(node, lock)
        end = now()
        hit += matched
        asked += turn.prompt
        matches.append(found - start)
        inserts.append(inserted - locked)
        pairs.append((locked - found) + (end - inserted) - CLOCK_NS)
        totals.append(end - start - 3 * CLOCK_NS)
    late = slice(sessions, None)
    for label in ("agents with session", "agents without session"):
        row[f"{label}: match p50, us"] = percentile_us(matches[late], 50)
        row[f"{label}: match p99, us"] = percentile_us(matches[late], 99)
        row[f"{label}: publish p50, us"] = percentile_us(inserts[late], 50)
        row[f"{label}: publish p99, us"] = percentile_us(inserts[late], 99)
        row[f"{label}: lease + release p50, us"] = percentile_us(pairs[late], 50)
        row[f"{label}: first turn p50, us"] = percentile_us(totals[:sessions], 50)
        row[f"{label}: turns/s"] = len(totals) / sum(totals) * 1e9
        row[f"{label}: hit rate"] = hit / asked


def bushes(row: Row, module: Any, work: Bushes, label: str) -> None:
    keys = [key_of(tokens) for tokens in work]
    tree = Tree(module)
    inserts = array("q", bytes(8 * len(keys)))
    before = heap_bytes()
    for i, key in enumerate(keys):
        pages, state = torch.arange(len(key), dtype=torch.int64), tree.state()
        start = now()
        tree.insert(key, pages, state)
        inserts[i] = now() - start
    row[f"{label}: bytes a node beside 4 a token"] = (
        heap_bytes() - before - 4 * work.tokens
    ) / work.nodes
    row[f"{label}: insert p50, us"] = percentile_us(inserts, 50)
    matches, pairs = [], []
    for i in np.random.default_rng(4).permutation(len(keys))[:2_000]:
        asked = keys[i][:]  # in the core's cache, as after a tokenizer; the tree is not
        start = now()
        _, node = tree.match(asked)
        found = now()
        tree.unlock(node, tree.lock(node))
        matches.append(found - start)
        pairs.append(now() - found)
    row[f"{label}: match p50, us"] = percentile_us(matches, 50)
    row[f"{label}: lease + release p50, us"] = percentile_us(pairs, 50)
    taken = []
    for _ in range(1_000):
        start = now()
        tree.evict(STATE, 1)
        taken.append(now() - start)
    row[f"{label}: evict one checkpoint p50, us"] = percentile_us(taken, 50)
    half = work.heads * work.leaves * work.leaf_tokens // 2
    start = now()
    freed = tree.evict(KV, half)
    row[f"{label}: bulk eviction, leaves/s"] = freed / work.leaf_tokens / (now() - start) * 1e9


def shorts(row: Row, module: Any) -> None:
    batches = short_prompts(40)
    keyed = [[key_of(tokens) for tokens in batch] for batch in batches]
    tree = Tree(module)
    pages = torch.arange(len(batches[0][0]), dtype=torch.int64)
    for name in ("cold", "repeated"):
        spent = []
        for batch in keyed:
            states = [tree.state() for _ in batch]
            start = now()
            held = []
            for key in batch:
                _, node = tree.match(key)
                held.append((key, node, tree.lock(node)))
            for (key, node, lock), state in zip(held, states, strict=True):
                tree.insert(key, pages, state)
                tree.unlock(node, lock)
            spent.append(now() - start)
        each = percentile_us(spent, 50) / SHORT_BATCH
        row[f"256 tokens, 64 at a time, {name}: a request, us"] = each
    spent = []
    for batch in keyed:
        start = now()
        for key in batch:
            tree.match(key)
        spent.append(now() - start)
    row["256 tokens, 64 at a time: match, us"] = percentile_us(spent, 50) / SHORT_BATCH


def crowded(row: Row, module: Any, crowd: Crowd, count: int, *, label: str, page: int) -> None:
    tree = Tree(module, page)
    pages = torch.arange(crowd.tokens, dtype=torch.int64)
    tree.insert(key_of(crowd.start[: crowd.shared]), pages[: crowd.shared], tree.state())
    for tokens in crowd.prompts(0, count):
        tree.insert(key_of(tokens), pages, tree.state())
    matches, requests = [], []
    for tokens in crowd.prompts(count, STRANGERS):
        key, state = key_of(tokens), tree.state()
        start = now()
        matched, node = tree.match(key)
        found = now()
        lock = tree.lock(node)
        tree.insert(key, pages, state, matched)
        tree.unlock(node, lock)
        requests.append(now() - start - CLOCK_NS)
        matches.append(found - start)
    row[f"{label}: match p50, us"] = percentile_us(matches, 50)
    row[f"{label}: a request p50, us"] = percentile_us(requests, 50)


def crowds(row: Row, module: Any, counts: tuple[int, ...]) -> None:
    """Measure crowds (many prompts below one tree node). With pages of one token SGLang also keeps
    prompts ending inside one of our 64-token pages."""
    for count in counts:
        crowded(row, module, TAILS, count, label=f"{count} tails on one node", page=1)
    for count in counts:
        crowded(row, module, CHILDREN, count, label=f"{count} children on one node", page=PAGE)


def main(folder: str, full: bool) -> None:
    torch.set_num_threads(1)
    quiet()
    module = load(folder)
    row: Row = {}
    lengths(row, module)
    agents(row, module, 200 if full else 40)
    bushes(row, module, Bushes(1_000 if full else 100, 120), "121K nodes")
    shorts(row, module)
    crowds(row, module, CROWDS if full else CROWDS[:2])
    print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1], full="--quick" not in sys.argv)
