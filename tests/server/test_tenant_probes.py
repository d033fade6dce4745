"""Tests of probes by one tenant for another's prompts: no count in an answer reveals anything."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import Allocation, CheckpointKind, PageMatch, PrefixCache, TreeConfig
from tasuki.server.auth.tenants import salt_of
from tests.harness import http_calls
from tests.harness.api_keys import headers, keys_file
from tests.harness.daemons import Node
from tests.harness.engines import Lone, engine_config, submit, tiny_parts
from tests.harness.running_nodes import HTTP, fused_node, node_pair

KEYS = "ann ann-key\nben ben-key\nops ops-key operator,caller\n"
DIGITS = range(100, 110)
SECRET = (103, 107, 101, 109, 104, 102)
# The secret lies inside the third page, after text an attacker may well know.
KNOWN = tuple(range(20, 20 + 138))
VICTIM = KNOWN + SECRET + tuple(range(200, 264))


# --- The attack: a prompt read token by token


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, ...]:
    return ("--api-keys", keys_file(tmp_path, KEYS), "--api-key", "owner-key")


@dataclass
class Attacker:
    """An attacker with one key, and with knowledge of all text before each digit."""

    node: Node
    key: str

    def told(self, prompt: tuple[int, ...]) -> dict[str, Any]:
        """Return the answer's figures for the prompt, without its times."""
        body = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0}
        asking = headers(self.key) | {"x-tasuki-hit": "1"}
        reply = http_calls.ask(self.node.http_address, "POST", "/v1/completions", body, asking)
        usage: dict[str, Any] = reply.json["usage"]
        assert usage["prompt_tokens_details"]["hybrid"]
        return usage

    def digits_learned(self) -> int:
        """Return the number of learned digits of the secret. A digit is learned if the right one of
        ten guesses alone gets a different answer."""
        for filler in range(3):
            # From here on the attacker's own text is cached, and its branch has a state.
            self.told((*KNOWN, *[90 + filler] * 22))
        learned = 0
        for place, digit in enumerate(SECRET):
            before = (*KNOWN, *SECRET[:place])
            told = {
                guess: json.dumps(self.told((*before, guess, *[80 + place] * (21 - place))))
                for guess in DIGITS
            }
            odd = [guess for guess in DIGITS if list(told.values()).count(told[guess]) == 1]
            learned += odd == [digit]
        return learned


@pytest.mark.parametrize(
    ("shared", "key", "learned"),
    [((), "ben-key", 0), (("--share-cache",), "ben-key", 0), (("--share-cache",), "ops-key", 6)],
    ids=["tenants", "shared", "the attack works for who is told everything"],
)
def test_sixty_guesses_learn_nothing_of_a_secret(
    keys: tuple[str, ...], shared: tuple[str, ...], key: str, learned: int
) -> None:
    with fused_node(*HTTP, *keys, *shared, arena_mib=256) as node:
        Attacker(node, "ann-key").told(VICTIM)
        assert Attacker(node, key).digits_learned() == learned


# --- Reports by whole pages


def in_pages(match: PageMatch) -> tuple[object, ...]:
    return match.kv_tokens, match.usable_tokens, match.checkpoint_kind, match.miss_reasons.as_dict()


def whole_pages_known(prompt: NDArray[np.int32], seen: list[NDArray[np.int32]]) -> int:
    """Return the prompt's tokens in whole pages shared with some earlier prompt."""
    best = 0
    for other in seen:
        length = min(len(prompt), len(other))
        differ = np.nonzero(prompt[:length] != other[:length])[0]
        best = max(best, int(differ[0]) if len(differ) else length)
    return best // 64 * 64


@pytest.mark.parametrize("seed", range(4))
def test_a_match_in_pages_says_nothing_of_what_agrees_inside_one(seed: int) -> None:
    """Match a prompt twice; the second time, tokens never used before replace the pages not known
    whole. Figures in pages stay equal, though the exact ones change."""
    generator = np.random.default_rng(seed)
    tree = PrefixCache(
        TreeConfig(slabs=24, blocks_per_slab=4, pages_per_slab=3, max_ghost_nodes=99)
    )
    seen: list[NDArray[np.int32]] = []
    held: list[Allocation] = []
    exact_differed = 0
    for _ in range(600):
        runs = [
            np.full(int(generator.integers(1, 70)), token, dtype=np.int32)
            for token in generator.integers(0, 3, 5)
        ]
        prompt = np.concatenate(runs)
        known = whole_pages_known(prompt, seen)
        blank = prompt.copy()
        blank[known:] = np.arange(1000, 1000 + len(prompt) - known)
        match, other = tree.match(prompt), tree.match(blank)
        assert in_pages(match.in_pages) == in_pages(other.in_pages)
        assert match.in_pages.kv_tokens % 64 == match.in_pages.usable_tokens % 64 == 0
        causes = match.in_pages.miss_reasons.as_dict()
        assert match.in_pages.usable_tokens + sum(causes.values()) == len(prompt)
        assert all(count % 64 == 0 for cause, count in causes.items() if cause != "new")
        exact_differed += match.miss_reasons.as_dict() != other.miss_reasons.as_dict()
        allocation = tree.allocate(prompt, capacity_tokens=len(prompt) + 8, working_slots=1)
        if allocation is not None:
            seen.append(prompt)
            held.append(allocation)
        if held and (allocation is None or generator.random() < 0.7):
            done = held.pop(0)
            first = done.cached_tokens + 1
            end = int(generator.integers(first, max(first, done.match.prompt_tokens) + 1))
            tree.insert(done, end, done.working_slots[0], CheckpointKind.TURN_END)
            tree.release(done)
        tree.check_integrity()
    assert exact_differed > 100, "exact counts would have told"


# --- Tokens computed


def computed(lone: Lone) -> list[int]:
    """Return a list of the tokens computed by each forward from now on, filled as forwards run."""
    counts: list[int] = []
    model = lone.parts.model
    forward = model.forward

    def counting(batch: Any, *rest: Any) -> Any:
        counts.append(len(batch.token_ids))
        return forward(batch, *rest)

    model.forward = counting  # type: ignore[method-assign]
    return counts


def test_a_foreign_prefix_costs_what_a_cold_one_does(tmp_path: Path) -> None:
    """Compute the same work forward by forward, so no clock can separate the two."""
    prompt = [int(token) for token in np.random.default_rng(3).integers(0, 128, 300)]
    other = [int(token) for token in np.random.default_rng(4).integers(0, 128, 300)]
    lone = Lone(engine_config(tmp_path), parts=tiny_parts())
    counts = computed(lone)

    def cost(name: str, tokens: list[int], tenant: str) -> list[int]:
        counts.clear()
        lone.post(submit(name, tokens, 4, salt=salt_of(tenant, b"")))
        lone.run()
        assert len(lone.tokens(name)) == 4
        return list(counts)

    cold = cost("ann's first", prompt, "ann")
    assert sum(cold) >= 300
    assert cost("ben's of ann's", prompt, "ben") == cold
    assert cost("ben's cold one", other, "ben") == cold
    warm = cost("ann's second", prompt, "ann")
    assert sum(warm) < sum(cold) - 200
    lone.assert_at_rest()


# --- The hand-over


@pytest.fixture
def pair(keys: tuple[str, ...]) -> Iterator[tuple[Node, Node]]:
    alone = ("--api-key", "owner-key")
    answering = (*keys, *HTTP, "--local-prefill-tokens", "16")
    with node_pair(prefill=alone, decode=answering) as nodes:
        yield nodes


def test_a_prefill_node_keeps_the_tenants_of_its_decode_nodes_apart(
    pair: tuple[Node, Node],
) -> None:
    prefill, decode = pair

    def usable(key: str) -> int:
        """Return the prompt's tokens usable on the prefill node."""
        before = prefill.stats().tree
        Attacker(decode, key).told(VICTIM)
        after = prefill.stats().tree
        assert after["prompt_tokens"] - before["prompt_tokens"] == len(VICTIM)
        return after["usable_tokens"] - before["usable_tokens"]

    assert usable("ann-key") == 0
    assert usable("ben-key") == 0
    assert usable("ann-key") >= 128
