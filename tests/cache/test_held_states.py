"""The list of the most valuable states, each with exactly its tokens, after any history. A state
from which one path leads on is left out. States at waiting sessions come first."""

import numpy as np
import pytest
from numpy.typing import NDArray

from tasuki.pycache._cpp_cache import HeldState, InvalidArgument, PrefixCache
from tests.cache.test_tree_view import conversation, keep_from_there
from tests.harness.covering import every_value
from tests.harness.trees import END, keep, keep_kv, take, text, tree_of

ALL = 100_000
Path = tuple[bytes, tuple[int, ...]]
Prompt = NDArray[np.int32]


def path_of(tree: PrefixCache, state: HeldState) -> Path:
    path = tree.path_to(state)
    assert path is not None
    salt, tokens = path
    assert tokens.dtype == np.int32 and len(tokens) == state.boundary
    return salt, tuple(tokens.tolist())


def prompt_behind(path: Path) -> Prompt:
    _, tokens = path
    return np.array([*tokens, 0], dtype=np.int32)


def stands(tree: PrefixCache, path: Path, prompt: Prompt) -> bool:
    """Return whether the state at the path is stored. prompt: prompt_behind(path)."""
    salt, tokens = path
    return tree.match(prompt, salt).usable_tokens == len(tokens)


@every_value(
    policy={name: name for name in ("lru", "value", "marconi", "auto")},
    seed={str(seed): seed for seed in range(3)},
)
def test_what_is_listed_stands_and_no_end_is_left_out(seed: int, policy: str) -> None:
    generator = np.random.default_rng(seed)
    tree = tree_of(48, policy=policy)
    # Each is asked for again and again, and its array takes longer to make than the tree to match.
    kept: dict[Path, Prompt] = {}
    for step in range(300):
        tokens = conversation(generator)
        boundary, salt = int(generator.integers(1, len(tokens) + 1)), bytes([step % 2])
        keep_from_there(tree, tokens, boundary, salt)
        ends = {(salt, tuple(tokens[:end].tolist())) for end in range(1, len(tokens) + 1)}
        kept |= {path: prompt_behind(path) for path in ends if path not in kept}
        if step % 10:
            continue
        listed = [path_of(tree, state) for state in tree.most_valuable(ALL)]
        assert len(set(listed)) == len(listed)
        assert all(stands(tree, path, prompt_behind(path)) for path in listed)
        standing = {path for path, prompt in kept.items() if stands(tree, path, prompt)}
        assert set(listed) <= standing and len(standing) == tree.stats().checkpoints
        for salt, path in standing:
            begins = [
                other
                for other_salt, other in standing
                if other_salt == salt and other != path and other[: len(path)] == path
            ]
            assert begins or (salt, path) in listed
        assert tree.most_valuable(3) == [] or listed[:3] == [
            path_of(tree, state) for state in tree.most_valuable(3)
        ]
        values = [state.value for state in tree.most_valuable(ALL)]
        known = [value for value in values if value is not None]
        assert known == sorted(known, reverse=True) and all(value > 0 for value in known)
    tree.check_integrity()


def test_a_beginning_that_several_share_is_listed_and_one_on_the_way_is_not() -> None:
    tree = tree_of(64)
    shared, way = text(128, 1), text(128, 2)
    keep(tree, shared, 128)
    keep(tree, way, 128)
    ends = [np.concatenate([shared, text(80, seed)]) for seed in (3, 4)]
    ends.append(np.concatenate([way, text(80, 5)]))
    for end in ends:
        keep(tree, end, len(end))
    listed = {path_of(tree, state)[1] for state in tree.most_valuable(ALL)}
    assert listed == {tuple(end.tolist()) for end in (shared, *ends)}


def test_a_session_that_waits_comes_first_wherever_others_went_on() -> None:
    tree = tree_of(64)
    log, young = text(100, 1), text(300, 2)
    cursor = tree.open_cursor()
    allocation = tree.allocate(log, capacity_tokens=len(log), working_slots=1, cursor=cursor)
    assert allocation is not None
    tree.insert(allocation, len(log), allocation.working_slots[0], END)
    tree.release(allocation)
    further = np.concatenate([log, text(200, 3)])
    keep(tree, further, len(further))
    keep(tree, young, len(young))
    first, *others = tree.most_valuable(ALL)
    assert first.awaited and path_of(tree, first)[1] == tuple(log.tolist())
    assert not any(state.awaited for state in others) and len(others) == 2
    tree.close_cursor(cursor)
    assert tuple(log.tolist()) not in {path_of(tree, s)[1] for s in tree.most_valuable(ALL)}


def test_kv_alone_is_no_state_to_resume_at() -> None:
    """If a later state is gone and only its KV is left, the next request resumes at the earlier
    state."""
    tree = tree_of(64)
    log = text(128, 1)
    keep(tree, log, 128)
    keep_kv(tree, np.concatenate([log, text(64, 2)]))
    (state,) = tree.most_valuable(ALL)
    assert path_of(tree, state)[1] == tuple(log.tolist())


def test_what_somebody_begins_from_is_not_listed() -> None:
    tree = tree_of(64)
    log = text(100, 1)
    keep(tree, log, len(log))
    allocation = take(tree, np.concatenate([log, text(50, 2)]))
    assert tree.most_valuable(ALL) == []
    tree.release(allocation)
    assert len(tree.most_valuable(ALL)) == 1


def test_a_state_that_is_gone_has_no_path() -> None:
    """It still has none when another state takes the same place."""
    tree = tree_of(64)
    for length in (128, 100):
        log = text(length, 1)
        keep(tree, log, length)
        (state,) = tree.most_valuable(ALL)
        tree.flush()
        assert tree.path_to(state) is None
        keep(tree, text(length, 2), length)
        (other,) = tree.most_valuable(ALL)
        assert tree.path_to(state) is None and other.name != state.name
        tree.flush()


def test_a_limit_of_none_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="limit must be at least 1 state, not 0"):
        tree_of().most_valuable(0)
