"""Prompts whose pages hash alike are still different prompts: tokens are compared behind every
hash, and where only names are known they choose a route and no state."""

from dataclasses import dataclass
from itertools import combinations, islice, pairwise, permutations

import numpy as np
import pytest
from numpy.typing import NDArray
from tasuki.client import prefix_index
from tasuki.client.answer import Answer
from tasuki.client.prefix_index import PrefixIndex
from tasuki.client.prompt import Prompt
from tasuki.pycache._cpp_cache import (
    CacheEvent,
    CheckpointKind,
    EventBatch,
    PrefixCache,
    TreeConfig,
    prefix_hashes,
)
from tasuki.transfer.transports.nixl.transport import installed_package

from tests.cache.colliding_pages import colliding_pages
from tests.harness.daemons import Node, flags, random_prompt
from tests.harness.waiting import until

Tokens = NDArray[np.int32]


def serve(tree: PrefixCache, tokens: Tokens) -> int:
    """A request that leaves its state behind; how many of its tokens were cached."""
    allocation = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1)
    assert allocation is not None
    cached = allocation.cached_tokens
    if cached < len(tokens):
        tree.insert(allocation, len(tokens), allocation.working_slots[0], CheckpointKind.TURN_END)
    tree.release(allocation)
    tree.check_integrity()
    return cached


def following(page: Tokens, *tokens: int) -> Tokens:
    return np.append(page, np.array(tokens, dtype=np.int32)).astype(np.int32)


@pytest.mark.parametrize("before", [0, 1, 2])
def test_sixteen_pages_of_one_hash_are_sixteen_prompts(before: int) -> None:
    """before: pages that all of them share."""
    start = np.arange(64 * before, dtype=np.int32)
    prompts = [np.concatenate([start, page]) for page in colliding_pages()]
    tree = PrefixCache(TreeConfig(slabs=64, blocks_per_slab=8, pages_per_slab=3))
    for turn, prompt in enumerate(prompts):
        match = tree.match(following(prompt, 1))
        assert (match.kv_tokens, match.usable_tokens) == (64 * before if turn else 0, 0)
        serve(tree, prompt)
    held = [tree.allocate(following(p, 1), capacity_tokens=256, working_slots=1) for p in prompts]
    own = set()
    for allocation, prompt in zip(held, prompts, strict=True):
        assert allocation is not None and allocation.cached_tokens == len(prompt)
        own.add(allocation.pages[before])
        tree.release(allocation)
    assert len(own) == len(prompts), "each has a page of its own"
    tree.flush()
    tree.check_integrity()
    assert all(tree.match(following(prompt, 1)).kv_tokens == 0 for prompt in prompts)


def test_under_pressure_what_is_left_of_the_colliding_is_still_told_apart() -> None:
    prompts = [np.concatenate(pages) for pages in islice(permutations(colliding_pages(1), 2), 60)]
    tree = PrefixCache(TreeConfig(slabs=12, blocks_per_slab=8, pages_per_slab=3))
    for prompt in prompts:
        assert serve(tree, prompt) == 0
    standing = [prompt for prompt in prompts if tree.match(following(prompt, 1)).usable_tokens]
    assert 0 < len(standing) < len(prompts)
    for prompt in standing:
        assert tree.match(following(prompt, 1)).usable_tokens == 128


@dataclass(frozen=True)
class Renamed:
    """An event whose names are cut so short that all collide."""

    event: CacheEvent

    @property
    def kind(self) -> str:
        return self.event.kind

    @property
    def tokens(self) -> int:
        return self.event.tokens

    @property
    def prefix(self) -> bytes | None:
        return None if self.event.prefix is None else b""

    parent = prefix


class Renaming(list[Renamed]):
    """A batch of such events."""

    def __init__(self, batch: EventBatch) -> None:
        super().__init__(map(Renamed, batch))
        self.sequence = batch.sequence
        self.is_snapshot = batch.is_snapshot


def test_names_that_collide_cost_a_router_its_estimate_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = colliding_pages()
    assert len({prefix_hashes(page)[-1] for page in pages}) == len(pages), "names are no such hash"
    one, other = pages[0], following(pages[1], 1)
    tree, index = (
        PrefixCache(TreeConfig(slabs=8, blocks_per_slab=8, pages_per_slab=3)),
        PrefixIndex(),
    )
    serve(tree, one)
    index.apply(Renaming(tree.drain_events(tree.watch("usable"))))
    assert index.usable_tokens(other) == 0
    monkeypatch.setattr(
        prefix_index,
        "prefix_hashes",
        lambda tokens, salt: [b"" for _ in prefix_hashes(tokens, salt)],
    )
    assert index.usable_tokens(other) == 64, "the router expects a hit that is none"
    assert tree.match(other).kv_tokens == 0 and serve(tree, other) == 0


@pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")
def test_a_pair_answers_prompts_that_collide_as_if_each_were_alone() -> None:
    prefill = Node("prefill", *flags()).wait_ready()
    decode = Node("decode", *flags(), "--prefill", prefill.address).wait_ready()
    pages, rest = colliding_pages(), random_prompt(8, 1)
    prompts = [(*page.tolist(), *other.tolist(), *rest) for page, other in pairwise(pages[::3])]

    def asked(prompt: tuple[int, ...], salt: bytes) -> Answer:
        return decode.client.generate(
            Prompt(token_ids=prompt), max_new_tokens=8, ignore_eos=True, cache_salt=salt
        ).result()

    def cached(answer: Answer) -> int:
        assert answer.usage.prefilled_on == "prefill" and answer.usage.hit is not None
        return answer.usage.hit.usable_tokens

    try:
        until(lambda: decode.stats().prefill_nodes[0].name == "prefill", decode.story)
        alone = [asked(prompt, str(number).encode()) for number, prompt in enumerate(prompts)]
        for left, right in combinations(alone, 2):
            assert not same(left, right), "a wrong state would be seen in the answers"
        for hit in (0, 128):
            for prompt, right in zip(prompts, alone, strict=True):
                answer = asked(prompt, b"")
                assert same(answer, right) and cached(answer) == hit
        for node in (prefill, decode):
            node.assert_at_rest()
    finally:
        assert [decode.stop(), prefill.stop()] == [0, 0]


def same(one: Answer, other: Answer) -> bool:
    """The same tokens, as likely."""
    parts = zip(one.margins, other.margins, strict=True)
    return one.token_ids == other.token_ids and all(abs(a - b) < 1e-3 for a, b in parts)
