"""Prompts with pages of equal hashes are still different prompts: tokens are compared after every
hash. If only names are known, they choose a route but no state."""

from dataclasses import replace
from itertools import combinations, islice, pairwise, permutations

import numpy as np
import pytest

from tasuki.client import cache_events
from tasuki.client.answer import Answer
from tasuki.client.cache_events import PrefixIndex
from tasuki.client.prompt import Prompt
from tasuki.pycache._cpp_cache import PrefixCache, prefix_hashes
from tasuki.pycache.packed import pack_events
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.cache.colliding_pages import colliding_pages
from tests.harness.daemons import Node, flags, meet, random_prompt
from tests.harness.trees import Tokens, joined, keep, take, tree_of, usable
from tests.harness.waiting import until


def serve(tree: PrefixCache, tokens: Tokens) -> int:
    """Run a request that leaves its state; return the number of its cached tokens."""
    return keep(tree, tokens).match.usable_tokens


@pytest.mark.parametrize("before", [0, 1, 2])
def test_sixteen_pages_of_one_hash_are_sixteen_prompts(before: int) -> None:
    """before: pages shared by all of them."""
    start = np.arange(64 * before, dtype=np.int32)
    prompts = [np.concatenate([start, page]) for page in colliding_pages()]
    tree = tree_of(64)
    for turn, prompt in enumerate(prompts):
        match = tree.match(joined(prompt, 1))
        assert (match.kv_tokens, match.usable_tokens) == (64 * before if turn else 0, 0)
        serve(tree, prompt)
    held = [take(tree, joined(prompt, 1), capacity=256) for prompt in prompts]
    own = set()
    for allocation, prompt in zip(held, prompts, strict=True):
        assert allocation.cached_tokens == len(prompt)
        own.add(allocation.pages[before])
        tree.release(allocation)
    assert len(own) == len(prompts), "each has a page of its own"
    tree.flush()
    tree.check_integrity()
    assert all(tree.match(joined(prompt, 1)).kv_tokens == 0 for prompt in prompts)


def test_under_pressure_what_is_left_of_the_colliding_is_still_told_apart() -> None:
    prompts = [np.concatenate(pages) for pages in islice(permutations(colliding_pages(1), 2), 60)]
    tree = tree_of(12)
    for prompt in prompts:
        assert serve(tree, prompt) == 0
    standing = [found for prompt in prompts if (found := usable(tree, prompt))]
    assert 0 < len(standing) < len(prompts) and set(standing) == {128}


def test_names_that_collide_cost_a_router_its_estimate_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages = colliding_pages()
    assert len({prefix_hashes(page)[-1] for page in pages}) == len(pages), "names are no such hash"
    one, other = pages[0], joined(pages[1], 1)
    tree, index = tree_of(8), PrefixIndex()
    serve(tree, one)
    events = pack_events(tree.drain_events(tree.watch("usable")))
    index.apply(replace(events, names=bytes(len(events.names))))
    assert index.usable_tokens(other) == 0
    # A name has sixteen bytes.
    monkeypatch.setattr(
        cache_events,
        "prefix_hashes",
        lambda tokens, salt: [bytes(16) for _ in prefix_hashes(tokens, salt)],
    )
    assert index.usable_tokens(other) == 64, "the router expects a hit that is none"
    assert tree.match(other).kv_tokens == 0 and serve(tree, other) == 0


@pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")
def test_a_pair_answers_prompts_that_collide_as_if_each_were_alone() -> None:
    prefill = Node("prefill", *flags()).wait_ready()
    decode = Node("decode", *flags(), "--prefill", prefill.address).wait_ready()
    meet(decode)
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
    """Return whether the tokens and their likelihoods are equal."""
    parts = zip(one.margins, other.margins, strict=True)
    return one.token_ids == other.token_ids and all(abs(a - b) < 1e-3 for a, b in parts)
