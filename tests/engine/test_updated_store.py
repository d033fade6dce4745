"""Two nodes with the same weights share a remote store, however each came by them: started with
them, or updated. Nothing of the weights before an update is found under the later ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine.tiers.remote.bucket import Bucket
from tasuki.engine.tiers.remote.remote_memory import Lookups, RemoteMemory
from tasuki.engine.tiers.remote.remote_objects import RemoteObjects
from tasuki.engine.tiers.tier import CPU_LINK
from tasuki.model.weights.tensor_tree import WeightsDigests
from tests.harness.engines import alone, prompt, submit, tiny_parts
from tests.harness.s3_server import S3Server, running_s3
from tests.harness.tiers import FaultyDisk, TieredEngine
from tests.harness.waiting import ManualClock

FIRST, SECOND = (WeightsDigests(name, name * 64) for name in "12")
PROMPT = prompt(600, seed=1)
NEXT = PROMPT + alone(PROMPT, 2) + prompt(40, seed=2)
KEPT = 601
"""Tokens of NEXT before the state left by PROMPT's answer."""


@pytest.fixture(autouse=True)
def near_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasuki.engine.assembly.parts.REMOTE_LINK", CPU_LINK)
    monkeypatch.setattr("tasuki.engine.assembly.parts.DISK_LINK", CPU_LINK)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


Folders = Callable[[str], Bucket]


@pytest.fixture
def folders(store: S3Server, tmp_path: Path) -> Folders:
    """Return a function from the digest of weight files to their folder, the test's own."""
    return lambda files: store.bucket(f"{tmp_path.name}-{files}")


@contextmanager
def started(folders: Folders, weights: WeightsDigests) -> Iterator[TieredEngine]:
    """Run a node that starts with these weights."""

    def remote(clock: ManualClock) -> RemoteMemory:
        bucket = folders(weights.files)
        objects = RemoteObjects(bucket, tiny_parts(slabs=2).layout)
        lookups = Lookups(bucket, objects, clock)
        return RemoteMemory(objects, lookups, 400, folder_for=folders)

    node = TieredEngine(slabs=40, host_slabs=60, remote=remote)
    yield node
    node.lone.run()
    node.lone.assert_at_rest()
    node.close()


@contextmanager
def updated(folders: Folders, weights: WeightsDigests) -> Iterator[TieredEngine]:
    """Run a node that starts with FIRST, answers PROMPT, and is updated."""
    with started(folders, FIRST) as node:
        answer(node, "before", PROMPT, 2)
        node.lone.engine.updates.name_weights(weights)
        yield node


def answer(node: TieredEngine, name: str, tokens: list[int], count: int) -> int:
    """Answer the prompt, and return its tokens found in the store."""
    node.lone.post(submit(name, tokens, count, salt=b"salt"))
    node.lone.run()
    assert node.lone.tokens(name) == alone(tokens, count)
    hit = node.lone.hit(name)
    assert hit.usable_tokens == hit.loaded.get("remote", 0), "a state of other weights was found"
    return hit.usable_tokens


@pytest.mark.parametrize("reader", [started, updated])
@pytest.mark.parametrize("writer", [started, updated])
def test_nodes_of_the_same_weights_share_in_every_order(
    writer: Callable[..., Iterator[TieredEngine]],
    reader: Callable[..., Iterator[TieredEngine]],
    folders: Folders,
) -> None:
    with writer(folders, SECOND) as node:
        assert answer(node, "written", PROMPT, 2) == 0
    with reader(folders, SECOND) as node:
        assert answer(node, "found", NEXT, 4) == KEPT


def test_weights_that_come_back_find_their_own_states_alone(folders: Folders) -> None:
    with updated(folders, SECOND) as node:
        assert answer(node, "second", NEXT, 4) == 0
        node.lone.engine.updates.name_weights(FIRST)
        assert answer(node, "first", NEXT, 4) == KEPT


@contextmanager
def on_disk(folder: Path) -> Iterator[TieredEngine]:
    """Run a node with a disk, which starts with FIRST."""
    disk = FaultyDisk(folder, tiny_parts(slabs=2).layout, 400).memory()
    node = TieredEngine(slabs=40, host_slabs=60, disk=disk)
    yield node
    node.lone.run()
    node.lone.assert_at_rest()
    node.close()


def test_a_restart_finds_states_on_its_disk_under_their_own_weights(tmp_path: Path) -> None:
    with on_disk(tmp_path) as node:
        node.lone.ask("first", PROMPT, 2)
        node.lone.engine.updates.name_weights(SECOND)
        node.lone.ask("second", PROMPT, 2)
        assert node.lone.hit("second").usable_tokens == 0
    with on_disk(tmp_path) as node:
        for name, weights in (("first", None), ("second", SECOND)):
            if weights is not None:
                node.lone.engine.updates.name_weights(weights)
            assert node.lone.ask(name, NEXT, 4) == alone(NEXT, 4)
            assert node.lone.hit(name).loaded == {"disk": KEPT}
        node.lone.engine.updates.name_weights(FIRST)
        node.lone.ask("named anew", NEXT, 4)
        assert node.lone.hit("named anew").usable_tokens == 0


def test_a_lookup_before_an_update_brings_nothing_after_it(folders: Folders) -> None:
    with started(folders, FIRST) as node:
        answer(node, "written", PROMPT, 2)
    with started(folders, FIRST) as node:
        remote = node.parts.remote
        assert remote is not None
        lookup = remote.lookups.begin(b"salt", np.array(NEXT, np.int32), 0)
        node.lone.engine.updates.name_weights(SECOND)
        remote.lookups.wait(10.0)
        assert list(remote.lookups.advance()) == [] and lookup.is_over
