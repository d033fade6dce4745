"""Tests of cache events over gRPC: a router that follows a node knows the usable contents of its
tree."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from tasuki.client.aio import AsyncClient
from tasuki.client.cache_events import PrefixIndex
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.pycache._cpp_cache import CheckpointKind, PrefixCache, TreeConfig, prefix_hashes
from tasuki.pycache.packed import pack_events
from tasuki.server.auth.tenants import salt_of
from tasuki.server.grpc import cache_messages as watch_messages
from tests.harness.engines import Lone, submit, tiny_parts
from tests.harness.grpc_fixtures import Front, ScriptedEngine, running_front


def small_tree() -> PrefixCache:
    return PrefixCache(TreeConfig(slabs=40, blocks_per_slab=4, pages_per_slab=3))


@dataclass
class TreeEngine(ScriptedEngine):
    """An engine that answers event queries from a real tree. The test changes the tree under the
    lock."""

    tree: PrefixCache = field(default_factory=small_tree)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def _handle(self, message: m.Inbox) -> None:
        with self.lock:
            match message:
                case m.WatchCache(query, stream):
                    self.deliver(m.WatchOpened(query, self.tree.watch(stream, 16)))
                case m.ReadEvents(query, watch):
                    self.deliver(m.EventsReply(query, pack_events(self.tree.drain_events(watch))))
                case m.EndWatch(watch):
                    self.tree.unwatch(watch)
                case _:
                    super()._handle(message)

    def keep(self, seed: int, length: int, salt: bytes = b"") -> None:
        tokens = np.random.default_rng(seed).integers(0, 99, length, dtype=np.int32)
        with self.lock:
            allocation = self.tree.allocate(
                tokens, salt=salt, capacity_tokens=length, working_slots=1
            )
            assert allocation is not None
            self.tree.insert(
                allocation, length, allocation.working_slots[0], CheckpointKind.TURN_END
            )
            self.tree.release(allocation)


@pytest.fixture
def engine() -> TreeEngine:
    return TreeEngine()


@pytest.fixture
def front(engine: TreeEngine) -> Iterator[Front]:
    with running_front(engine=engine) as front:
        yield front


def test_asyncio_watches_and_asks_alike(front: Front, engine: TreeEngine) -> None:
    engine.keep(1, 128)

    async def watch() -> tuple[int, int]:
        async with AsyncClient(front.address) as client:
            told = client.watch_cache()
            batch = await anext(told)
            await told.aclose()
            return len(batch), len((await client.stats()).ListFields())

    with Client(front.address) as client:
        first = next(client.watch_cache())
        fields = len(client.stats().ListFields())
    assert asyncio.run(watch()) == (len(first), fields) and len(first) > 0


@pytest.mark.parametrize("stream", ["usable", "all"])
def test_a_router_follows_a_node_by_its_events(
    front: Front, engine: TreeEngine, stream: str
) -> None:
    index = PrefixIndex()
    engine.keep(0, 100)
    with Client(front.address) as client:
        batches = client.watch_cache(stream)
        first = next(batches)
        assert first.is_snapshot and first.gap is None
        index.apply(first)
        assert sorted(index.checkpoints.values()) == [100]
        for seed, length in enumerate((128, 150, 70), start=1):
            engine.keep(seed, length)
        while len(index.checkpoints) < 4:
            index.apply(next(batches))
        assert sorted(index.checkpoints.values()) == [70, 100, 128, 150]
        assert len(index.pages) == (6 if stream == "all" else 0)
        batches.close()
        engine.wait_for(m.EndWatch)


def test_a_batch_too_large_for_a_message_comes_in_parts(
    front: Front, engine: TreeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_messages, "EVENTS_A_MESSAGE", 3)
    for seed in range(5):
        engine.keep(seed, 128)
    with Client(front.address) as client:
        batch = next(client.watch_cache("all"))
    assert batch.is_snapshot and len(batch) == 15
    assert [event.kind for event in batch].count("checkpoint_stored") == 5


def test_events_name_their_namespace_and_not_its_salt(front: Front, engine: TreeEngine) -> None:
    salts = (b"", b"one", salt_of("ann", b""))
    names = {prefix_hashes(np.empty(0, np.int32), salt)[0]: salt for salt in salts}
    assert len(names) == len(salts)
    for seed, salt in enumerate(salts):
        engine.keep(seed, 150, salt)
    with Client(front.address) as client:
        batches = client.watch_cache("all")
        snapshot = list(next(batches))
        engine.keep(9, 70, b"one")
        later = list(next(batches))
    assert [names[event.namespace] for event in later] == [b"one"] * len(later) and later
    for salt in salts:
        told = [event for event in snapshot if names[event.namespace] == salt]
        assert [event.tokens for event in told] == [64, 128, 150]
        assert told[0].parent == told[0].namespace


def test_an_unknown_stream_is_refused_before_anything_is_asked(front: Front) -> None:
    with Client(front.address) as client, pytest.raises(ValueError, match="PAGES"):
        next(client.watch_cache("pages"))


def test_an_engine_tells_what_a_turn_left() -> None:
    engine = Lone(EngineConfig(model="tiny", dtype="float32"), parts=tiny_parts())
    index = PrefixIndex()
    engine.post(m.WatchCache(1, "usable"))
    (opened,) = [said for said in engine.said if isinstance(said, m.WatchOpened)]
    prompt = list(range(100))
    for turn in ("first", "second"):
        engine.post(submit(turn, prompt, 3))
        engine.run()
        engine.post(m.ReadEvents(2, opened.watch))
        told = engine.said[-1]
        assert isinstance(told, m.EventsReply)
        index.apply(told.batch)
        prompt += [*engine.tokens(turn), 5]
        usable = index.usable_tokens(np.array(prompt, np.int32))
        assert usable == len(prompt) - 2, "all but the last sampled token and what is new"
    hit = engine.finished("second").usage.hit
    assert hit is not None and hit.usable_tokens == 102
    engine.post(m.EndWatch(opened.watch))
