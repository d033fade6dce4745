"""The index compared with a search through all inserted texts; ring, salts, ends of texts."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.engine.forward_plan import Ints
from tasuki.engine.speculation.speculation import ANCHOR_TOKENS, SuffixIndex


class NaiveIndex:
    """All texts, the newest last."""

    def __init__(self) -> None:
        self._texts: list[tuple[bytes, list[int]]] = []

    def begin(self, salt: bytes) -> None:
        self._texts.append((salt, []))

    def append(self, tokens: Sequence[int]) -> None:
        self._texts[-1][1].extend(tokens)

    def may_follow(self, last: Sequence[int], salt: bytes, most: int) -> list[list[int]]:
        """Return all continuations of these tokens, the latest last."""
        found = []
        for owner, text in self._texts:
            for place in range(ANCHOR_TOKENS, len(text)):
                if owner == salt and text[place - ANCHOR_TOKENS : place] == list(last):
                    found.append(text[place : place + most])
        return found


def ints(tokens: Sequence[int]) -> Ints:
    return np.array(tokens, dtype=np.int32)


_TEXTS = st.lists(
    st.tuples(
        st.sampled_from([b"", b"a", b"b"]),
        st.lists(st.lists(st.integers(0, 1), max_size=30), max_size=4),
    ),
    min_size=1,
    max_size=6,
)


@given(_TEXTS, st.lists(st.integers(0, 1), min_size=6, max_size=6), st.sampled_from([b"", b"a"]))
def test_what_is_found_stood_there_last(
    texts: list[tuple[bytes, list[list[int]]]], last: list[int], salt: bytes
) -> None:
    index, naive = SuffixIndex(4096), NaiveIndex()
    for owner, pieces in texts:
        index.begin(owner)
        naive.begin(owner)
        for piece in pieces:
            index.append(ints(piece))
            naive.append(piece)
    found = index.follow(last, salt, 5)
    expected = naive.may_follow(last, salt, 5)
    # The table has one place per hash, for the newest text; its salt may differ.
    assert found == [] or found == expected[-1]
    if all(owner == salt for owner, _ in texts):
        assert found == (expected[-1] if expected else [])


@given(st.lists(st.lists(st.integers(0, 2), max_size=40), max_size=30), st.integers(0, 2**32))
def test_a_ring_that_has_gone_round_finds_only_what_it_still_has(
    texts: list[list[int]], seed: int
) -> None:
    index = SuffixIndex(64)
    everything: list[int] = []
    for text in texts:
        index.begin(b"")
        index.append(ints(text))
        everything += text
    newest = everything[-64:]
    last = np.random.default_rng(seed).integers(0, 3, ANCHOR_TOKENS).tolist()
    found = index.follow(last, b"", 4)
    whole = last + found
    assert found == [] or any(
        newest[at : at + len(whole)] == whole for at in range(len(newest) - len(whole) + 1)
    )


def test_a_text_longer_than_the_ring_is_known_by_its_end() -> None:
    index = SuffixIndex(100)
    index.begin(b"")
    index.append(ints(range(1000)))
    found = [index.follow(range(at, at + ANCHOR_TOKENS), b"", 1) for at in range(994)]
    assert not any(found[:900])
    right = [[at + ANCHOR_TOKENS] for at in range(900, 994)]
    assert all(one in ([], wanted) for one, wanted in zip(found[900:], right, strict=True))
    # Some share a place in the table, and of those the newest is there.
    assert sum(map(bool, found[900:])) > 60


def test_a_text_ends_where_the_next_begins() -> None:
    index = SuffixIndex(100)
    for start in (0, 50):
        index.begin(b"")
        index.append(ints(range(start, start + 10)))
    assert index.follow([2, 3, 4, 5, 6, 7], b"", 5) == [8, 9]
    assert index.follow([4, 5, 6, 7, 8, 9], b"", 5) == []


@pytest.mark.parametrize("salt", [b"", b"other", b"mine "])
def test_another_salt_finds_nothing(salt: bytes) -> None:
    index = SuffixIndex(100)
    index.begin(b"mine")
    index.append(ints(range(30)))
    assert index.follow([1, 2, 3, 4, 5, 6], b"mine", 1) == [7]
    assert index.follow([1, 2, 3, 4, 5, 6], salt, 1) == []
