"""Tests of a conversation's log against a plain list. Tokens stay as they were read, and turns
taken back cost no memory."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasuki.server.sessions import TokenLog

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 400)),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("read"), st.just(0)),
    ),
    max_size=60,
)


@given(MOVES)
def test_what_was_read_never_changes_and_memory_follows_the_longest(
    moves: list[tuple[str, float]],
) -> None:
    log, twin, readers, longest = TokenLog(), [0][:0], [], 0
    for number, (move, size) in enumerate(moves):
        match move:
            case "append":
                log.append(np.full(int(size), number, dtype=np.int32))
                twin += [number] * int(size)
            case "truncate":
                del twin[int(size * len(twin)) :]
                log.truncate(len(twin))
            case _:
                readers.append((log.tokens(), [*twin]))
        longest = max(longest, len(twin))
        assert log.tokens().tolist() == twin
        assert log.capacity <= max(256, 2 * longest)
    for seen, was in readers:
        assert seen.tolist() == was


def test_turns_that_are_taken_back_do_not_grow_the_log() -> None:
    log = TokenLog()
    log.append(np.arange(100, dtype=np.int32))
    for _ in range(60):
        log.append(np.array([7, 8], dtype=np.int32))
        assert log.tokens().tolist() == [*range(100), 7, 8]
        log.truncate(100)
    assert log.capacity == 256
