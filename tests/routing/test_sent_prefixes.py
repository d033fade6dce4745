"""Tests of a sender's memory of prompts: the nodes each prefix was sent to."""

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import FleetIndex
from tasuki.routing.prefix_hints import (
    MOST_NAMES,
    MOST_NODES,
    REMEMBERED_SECONDS,
    Beginning,
    SentPrefixes,
)


def beginnings(text: NDArray[np.int32], salt: bytes) -> list[Beginning]:
    return FleetIndex().look_up(text, salt, 1, 0)[1]


def prompt(shared: int, own: int, length: int) -> NDArray[np.int32]:
    """Return a prompt; its first `shared` tokens are equal in all prompts."""
    text = np.zeros(length, np.int32)
    text[shared:] = own
    return text


def test_prompts_that_begin_alike_are_known_until_they_part() -> None:
    sent = SentPrefixes()
    sent.send(beginnings(prompt(3000, 1, 9000), b""), 7, 0.0)
    sent.send(beginnings(prompt(0, 2, 9000), b""), 8, 0.0)
    assert sent.known(beginnings(prompt(3000, 3, 5000), b""), 1.0) == {7: 2560}
    assert sent.known(beginnings(prompt(3000, 1, 5000), b""), 1.0) == {7: 4608}
    assert sent.known(beginnings(prompt(3000, 1, 100), b""), 1.0) == {}
    assert sent.known(beginnings(prompt(3000, 1, 5000), b"another"), 1.0) == {}


def test_a_long_prompt_has_few_beginnings() -> None:
    found = [tokens for tokens, _ in beginnings(prompt(0, 1, 110_000), b"")]
    assert found == sorted(set(found))
    assert len(found) < 40
    assert 28_000 < found[-1] <= 32_768


def test_what_was_sent_is_forgotten() -> None:
    sent = SentPrefixes()
    text = beginnings(prompt(0, 1, 2000), b"")
    sent.send(text, 1, 0.0)
    sent.send(text, 2, REMEMBERED_SECONDS)
    assert sent.known(text, REMEMBERED_SECONDS) == {1: 1536, 2: 1536}
    assert sent.known(text, REMEMBERED_SECONDS + 1) == {2: 1536}


def test_memory_of_names_and_of_their_nodes_is_bounded() -> None:
    sent = SentPrefixes()
    text = beginnings(prompt(0, 1, 1024), b"")
    for node in range(3 * MOST_NODES):
        sent.send(text, node, 0.0)
    assert set(sent.known(text, 0.0)) == {*range(2 * MOST_NODES, 3 * MOST_NODES)}
    for number in range(MOST_NAMES):
        sent.send([(512, number)], 0, 0.0)
    assert sent.known(text, 0.0) == {}
    assert sent.known([(512, MOST_NAMES - 1)], 0.0) == {0: 512}
