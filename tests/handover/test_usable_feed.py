"""A prefill node's feed of usable prefixes, and the index made from it by a decode node. After late
or repeated batches both are equal in the end. A node stays within its share."""

import asyncio
from collections.abc import Iterator

import pytest

from tasuki.decode_node import prefill_router as usable_index
from tasuki.decode_node.prefill_router import FRESH_SECONDS, UsableIndex
from tasuki.prefill_node import usable_feed
from tasuki.prefill_node.usable_feed import UsableFeed
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import PrefixCache, prefix_hashes
from tasuki.pycache.keys import Keys
from tasuki.pycache.packed import pack_events
from tasuki.pycache.weights_namespace import WeightsNamespace
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.protocol.messages import MOST_PREFIXES
from tests.harness.trees import keep, text, tree_of
from tests.harness.waiting import HANG_SECONDS

SALT = b"salt"


class Followed:
    """A tree, the feed of its node, and the index of a reading node."""

    def __init__(self) -> None:
        self.tree: PrefixCache = tree_of(slabs=64)
        self._watch = self.tree.watch("usable", 4)
        self._feed = UsableFeed(lambda: None)
        self._reading = self._feed._reading()
        self.reader = self._reading.__enter__()
        self.index = UsableIndex()
        self.node = self.index.add()

    def read(self) -> None:
        self._feed.take(pack_events(self.tree.drain_events(self._watch)))

    def send(self) -> list[pb.UsableBatch]:
        batches = [*self.reader.take()]
        for batch in batches:
            self.index.apply(self.node, batch, 0.0)
        return batches

    def agree(self) -> bool:
        """Return whether the index equals a new watch of the tree."""
        return len(self.index) == self.tree.stats().checkpoints


@pytest.fixture
def followed() -> Iterator[Followed]:
    yield Followed()


def kept(followed: Followed, seed: int) -> None:
    keep(followed.tree, text(200, seed), 128, 200, salt=SALT)


def test_the_index_is_the_tree_through_changes_gaps_and_flushes(followed: Followed) -> None:
    for seed in range(40):
        kept(followed, seed)
        if seed % 3 == 0:
            followed.read()
        if seed % 5 == 0:
            followed.send()
        if seed == 20:
            followed.tree.flush()
    followed.read()
    followed.send()
    assert followed.agree() and len(followed.index) > 0
    held = followed.index.look_up(text(201, 39), SALT, 1, 0)[0]
    assert held == {followed.node: 200} or held == {followed.node: 128}
    assert not followed.index.look_up(text(201, 39), b"another tenant", 1, 0)[0]


def test_a_prefix_is_looked_up_under_each_node_s_own_weights(followed: Followed) -> None:
    later = WeightsNamespace.of("2" * 64)
    tokens, index = text(200, 1), followed.index
    keep(followed.tree, tokens, 128, 200, salt=SALT)
    followed.read()
    followed.send()
    updated = index.add(later)
    assert index.look_up(text(201, 1), SALT, 4, 0)[0] == {followed.node: 200}
    index.apply(updated, stored_under(b"", tokens), 0.0)
    assert index.look_up(text(201, 1), SALT, 4, 0)[0] == {followed.node: 200}, "of old weights"
    index.start_over(updated)
    index.apply(updated, stored_under(later.prefix, tokens), 0.0)
    assert index.look_up(text(201, 1), SALT, 4, 0)[0] == {followed.node: 200, updated: 200}
    assert index.look_up(text(201, 1), later.salted(SALT), 4, 0)[0] == {}


def stored_under(prefix: bytes, tokens: Keys) -> pb.UsableBatch:
    """Return the first batch of a node that holds these tokens. prefix: in front of SALT."""
    names = prefix_hashes(tokens, prefix + SALT)
    stored = pb.Prefixes(names=names[-1], parents=names[-2], tokens=[len(tokens)])
    return pb.UsableBatch(sequence=1, snapshot=True, stored=stored)


def test_what_others_are_about_to_look_for_is_sent_at_once(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unrequested answer is not delayed until the next read."""
    monkeypatch.setattr(usable_feed, "READ_SECONDS", 1000.0)
    asked = []
    feed = UsableFeed(lambda: asked.append(1))
    watch = followed.tree.watch("usable", 4)

    async def scenario() -> list[pb.UsableBatch]:
        batches = feed.batches(lambda: True)
        first = asyncio.ensure_future(anext(batches))
        while not asked:
            await asyncio.sleep(0)
        feed.take(pack_events(followed.tree.drain_events(watch)))
        await asyncio.sleep(0.01)
        assert not first.done(), "an answer waits for its turn"
        kept(followed, 1)
        feed.take(pack_events(followed.tree.drain_events(watch)))
        found = [await first, await anext(batches)]
        await batches.aclose()
        return found

    snapshot, stored = asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))
    assert snapshot.snapshot and stored.HasField("stored")


def test_what_came_and_went_between_two_batches_is_in_none(followed: Followed) -> None:
    followed.read()
    assert [batch.snapshot for batch in followed.send()] == [True]
    kept(followed, 1)
    followed.read()
    followed.tree.flush()
    followed.read()
    assert not any(batch.stored.tokens for batch in followed.send())
    assert len(followed.index) == 0


def test_a_reader_that_is_too_slow_gets_all_that_stands(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usable_feed, "_MOST_WAITING", 3)
    followed.read()
    followed.send()
    for seed in range(4):
        kept(followed, seed)
        followed.read()
    batches = followed.send()
    assert batches[0].snapshot and followed.agree()


def prefixes(count: int, first: int = 0) -> pb.Prefixes:
    numbers = range(first, first + count)
    return pb.Prefixes(
        names=b"".join(number.to_bytes(16, "little") for number in numbers),
        parents=b"".join((number + 2**40).to_bytes(16, "little") for number in numbers),
        tokens=[100] * count,
    )


def test_a_node_has_no_more_entries_than_its_share_and_takes_none_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usable_index, "MOST_OF_A_NODE", 1000)
    index = UsableIndex()
    greedy, other = index.add(), index.add()
    index.apply(other, pb.UsableBatch(sequence=1, snapshot=True, stored=prefixes(10)), 0.0)
    for number in range(20):
        stored = prefixes(500, 500 * number)
        batch = pb.UsableBatch(sequence=number + 1, snapshot=number == 0, stored=stored)
        index.apply(greedy, batch, 0.0)
    assert index.entries(greedy) == 1000 and index.entries(other) == 10
    index.discard(greedy)
    assert len(index) == 10


def test_one_prefix_has_few_entries_of_a_node_however_many_it_sends() -> None:
    index = UsableIndex()
    node = index.add()
    behind_one = pb.Prefixes(names=prefixes(MOST_PREFIXES).names, parents=b"p" * 16 * MOST_PREFIXES)
    behind_one.tokens.extend([100] * MOST_PREFIXES)
    index.apply(node, pb.UsableBatch(sequence=1, snapshot=True, stored=behind_one), 0.0)
    assert index.entries(node) == len(index) <= 64


@pytest.mark.parametrize(
    "batch",
    [
        pb.UsableBatch(sequence=1),
        pb.UsableBatch(sequence=2, snapshot=True),
        pb.UsableBatch(sequence=2**63, snapshot=True),
        pb.UsableBatch(sequence=1, snapshot=True, stored=prefixes(MOST_PREFIXES + 1)),
        pb.UsableBatch(sequence=1, snapshot=True, stored=pb.Prefixes(names=b"n" * 16)),
        pb.UsableBatch(sequence=1, snapshot=True, removed=pb.Prefixes(tokens=[2**31])),
    ],
    ids=["no snapshot", "a gap", "a wide gap", "too many", "no tokens", "no names"],
)
def test_what_no_node_sends_is_refused_by_name(batch: pb.UsableBatch) -> None:
    index = UsableIndex()
    node = index.add()
    with pytest.raises(PeerInvalid, match="usable"):
        index.apply(node, batch, 0.0)
    assert len(index) == 0 and not index.fresh(node, 0.0)


def test_a_node_is_fresh_as_long_as_batches_come() -> None:
    index = UsableIndex()
    node = index.add()
    assert not index.fresh(node, 0.0)
    index.apply(node, pb.UsableBatch(sequence=1, snapshot=True), 10.0)
    assert index.fresh(node, 10.0 + FRESH_SECONDS)
    assert not index.fresh(node, 10.1 + FRESH_SECONDS)
    index.start_over(node)
    assert not index.fresh(node, 10.0)
