"""A view of the tree shows its exact content, after any history."""

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages import Tokens
from tasuki.proto import inference_pb2 as pb
from tasuki.pycache._cpp_cache import (
    CheckpointKind,
    InvalidArgument,
    PrefixCache,
    ViewedNode,
)
from tasuki.server.errors import InvalidField
from tasuki.server.grpc.cache_messages import node_name, read_node_name, tree_message, tree_question
from tests.harness.engines import tiny_engine
from tests.harness.trees import END, keep, take, tree_of

ALL = 100_000
Sums = tuple[int, int, int]


def keep_from_there(tree: PrefixCache, tokens: Tokens, end: int, salt: bytes) -> None:
    """Run a request that leaves a state at `end`, or just after its cached tokens if that is
    later."""
    allocation = take(tree, tokens, salt=salt)
    tree.insert(
        allocation, max(end, allocation.cached_tokens + 1), allocation.working_slots[0], END
    )
    tree.release(allocation)


def conversation(generator: np.random.Generator) -> Tokens:
    """Return a prompt with few different first pages, so paths meet and split, and any length, so
    there are partial pages."""
    pages = [np.full(64, token, dtype=np.int32) for token in generator.integers(0, 3, 6)]
    return np.concatenate(pages)[: int(generator.integers(2, 384))]


def nodes_of(tree: PrefixCache, limit: int = ALL, **where: tuple[int, int]) -> list[ViewedNode]:
    view = tree.view(limit, **where)
    assert view is not None
    return list(view)


def sums(standing: object) -> Sums:
    return standing.tokens, standing.nodes, standing.states  # type: ignore[attr-defined]


def own(node: ViewedNode) -> Sums:
    states = node.tails + (node.state is not None)
    return node.tokens, int(node.tokens > 0), states


def check(nodes: list[ViewedNode]) -> None:
    """Check that every node's sum is its own values, its shown children and the hidden ones."""
    told: list[Sums] = [own(node) for node in nodes]
    for node, total in reversed(list(zip(nodes, told, strict=True))):
        place = nodes.index(node)
        total = tuple(map(sum, zip(told[place], sums(node.hidden), strict=True)))
        assert total == sums(node.standing)
        assert min(sums(node.hidden)) >= 0
        if node.above is not None:
            assert node.above < place
            told[node.above] = tuple(map(sum, zip(told[node.above], total, strict=True)))


@pytest.mark.parametrize("seed", range(4))
def test_the_sums_are_kept_through_splits_evictions_and_ghosts(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tree, late = tree_of(48), tree_of(48)
    nodes_of(tree)
    for step in range(400):
        tokens = conversation(generator)
        boundary, salt = int(generator.integers(1, len(tokens) + 1)), bytes([step % 2])
        for each in (tree, late):
            keep_from_there(each, tokens, boundary, salt)
            if step % 97 == 96:
                each.flush()
        if step % 20 == 0:
            nodes = nodes_of(tree)
            check(nodes)
            stats, top = tree.stats(), nodes[0]
            assert (top.standing.nodes, top.standing.states) == (stats.nodes, stats.checkpoints)
            tails = sum(node.tails for node in nodes)
            assert top.standing.tokens == (stats.pages.tree - tails) * 64
    # A first view of the other tree shows the same.
    assert [(node.name, sums(node.standing)) for node in nodes_of(tree)] == [
        (node.name, sums(node.standing)) for node in nodes_of(late)
    ]
    tree.check_integrity()


def test_the_heaviest_subtrees_are_told_and_the_rest_is_one_number() -> None:
    tree = tree_of(200)
    generator = np.random.default_rng(7)
    for _ in range(60):
        tokens = conversation(generator)
        keep_from_there(tree, tokens, len(tokens), b"")
    everything = nodes_of(tree)
    few = nodes_of(tree, 9)
    check(few)
    assert len(few) == 9 < len(everything)
    assert sums(few[0].standing) == sums(everything[0].standing)
    assert sum(node.hidden.nodes for node in few) == len(everything) - len(few)
    told = {node.name for node in few}
    lightest = min(node.standing.tokens for node in few)
    assert all(node.standing.tokens <= lightest for node in everything if node.name not in told)


def test_a_node_is_looked_into_by_its_name_and_by_a_prefix() -> None:
    tree = tree_of(48)
    first, second = (np.array([1] * 64 + [end] * 65, dtype=np.int32) for end in (2, 3))
    keep(tree, first, 128)
    keep(tree, second, 128)
    everything = nodes_of(tree)
    (shared,) = [node for node in everything if node.children == 2]
    assert (shared.depth, shared.tokens, shared.state) == (64, 64, None)
    inside = nodes_of(tree, under=shared.name)
    assert inside[0].name == shared.name and inside[0].above is None
    assert [node.above for node in inside[1:]] == [0, 0]
    assert {node.state for node in inside[1:]} == {CheckpointKind.TURN_END}
    assert tree.node_at(second) in {node.name for node in inside[1:]}
    assert tree.node_at(np.array([1] * 65, dtype=np.int32)) == shared.name
    assert tree.node_at(first, b"another tenant") is None


def test_pins_are_told_and_a_gone_node_is_none() -> None:
    tree = tree_of(48)
    tokens = np.arange(129, dtype=np.int32)
    keep(tree, tokens, 128)
    allocation = take(tree, tokens, capacity=192)
    leaf = nodes_of(tree)[-1]
    assert leaf.is_protected and leaf.allocations == leaf.state_pins == 1
    tree.release(allocation)
    assert not nodes_of(tree)[-1].is_protected
    tree.flush()
    assert tree.view(9, leaf.name) is None
    assert tree.view(9, (2**31 - 1, 1)) is None
    with pytest.raises(InvalidArgument, match="at least 1"):
        tree.view(0)


def test_the_engine_answers_with_what_its_requests_left() -> None:
    lone = tiny_engine()
    prompt = list(range(1, 100)) + [3] * 100
    lone.ask("a", prompt, 4)
    lone.post(m.TreeQuery(1, 16))
    lone.post(m.TreeQuery(2, 16, prefix=np.array(prompt, dtype=np.int32)))
    lone.post(m.TreeQuery(3, 16, under=(77, 78)))
    whole, path, gone = (reply.view for reply in lone.all_said(m.TreeReply))
    assert gone is None and whole is not None and path is not None
    check(list(whole))
    message = tree_message(whole)
    assert message.nodes[0].name == "" and not message.nodes[0].HasField("above")
    assert message.nodes[0].standing.checkpoints == lone.stats().tree["checkpoints"]
    assert next(iter(path)).name in {node.name for node in whole}


def test_questions_are_read_strictly() -> None:
    assert read_node_name(node_name((7, 2**40))) == (7, 2**40)
    assert tree_question(pb.TreeRequest())[0] == 256
    for bad in (
        pb.TreeRequest(limit=0),
        pb.TreeRequest(limit=5000),
        pb.TreeRequest(under="7"),
        pb.TreeRequest(under=f"{2**31}.1"),
        pb.TreeRequest(prefix=pb.TokenIds()),
    ):
        with pytest.raises(InvalidField):
            tree_question(bad)
