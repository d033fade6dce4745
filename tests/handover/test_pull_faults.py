"""A pull between two real daemons over NIXL: the death of one costs time only."""

import random
from collections.abc import Iterator

import pytest

from scripts.chaos.victims import Victim, decode_flags, state, victim_flags
from tasuki.client.answer import Answer
from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import NEW_TOKENS, Node, asked, flags, fleet
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import until

pytestmark = needs_nixl

LAYERS = 8
HEAD, MORE = 300, 100
TRANSFER_ID = ("--arena-mib", "96", "--prefill-chunk-tokens", "256", "--layers-per-window", "1")
NEVER_IN_PREFILL, NEVER_IN_DECODE = "receiver.before_reserve", "sender.on_grant"
"""Places never reached in this role, for a node that must not fail."""


@pytest.fixture(scope="module")
def fused() -> Iterator[Node]:
    with fleet() as start:
        yield start("serve", *flags(arena_mib=96))


@pytest.fixture(scope="module")
def prefill() -> Iterator[Victim]:
    node = Victim("prefill", *victim_flags(), *TRANSFER_ID).wait_ready()
    assert isinstance(node, Victim)
    yield node
    assert node.stop() == 0


@pytest.fixture(scope="module")
def decode(prefill: Victim) -> Iterator[Victim]:
    node = Victim("decode", *decode_flags(prefill), *TRANSFER_ID).wait_ready()
    assert isinstance(node, Victim)
    yield node
    assert node.stop() == 0


def tokens_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256, 2000) for _ in range(length)]


def turn(node: Node, log: list[int], salt: str, new_tokens: int = NEW_TOKENS) -> Answer:
    return asked(node, tuple(log), salt.encode(), new_tokens).result()


def first_turn(decode: Node, fused: Node, name: str) -> tuple[list[int], tuple[int, ...]]:
    """Return the log sent by the second turn, and the tokens expected as its answer."""
    log = tokens_of(HEAD, seed=len(name))
    log += turn(decode, log, name).token_ids
    log += tokens_of(MORE, seed=2)
    return log, turn(fused, log, name).token_ids


def meet(decode: Node) -> None:
    connected = pb.PREFILL_NODE_STATE_CONNECTED
    until(lambda: state(decode) == connected, "not connected")


def test_a_prefill_node_that_dies_while_it_pulls(
    prefill: Victim, decode: Victim, fused: Node
) -> None:
    """It dies at the first layer chunk."""
    point = "receiver.on_landed@0"
    prefill.reborn(point)
    meet(decode)
    log, expected = first_turn(decode, fused, point)
    stream = asked(decode, tuple(log), point.encode())
    prefill.dies()
    answer = stream.result()
    assert answer.token_ids == expected
    assert answer.usage.local_fallback and answer.usage.pulled is None
    decode.assert_at_rest()


def test_a_decode_node_that_dies_while_it_is_pulled_from(
    prefill: Victim, decode: Victim, fused: Node
) -> None:
    """It dies after the last layer chunk."""
    point = f"sender.after_flush@{LAYERS - 1}"
    prefill.reborn(NEVER_IN_PREFILL)
    decode.reborn(point)
    meet(decode)
    log, expected = first_turn(decode, fused, point)
    stream = asked(decode, tuple(log), point.encode())
    decode.dies()
    prefill.assert_at_rest()
    stream.cancel()
    decode.reborn(NEVER_IN_DECODE)
    meet(decode)
    assert turn(decode, log, point).token_ids == expected
    for node in (prefill, decode):
        node.assert_at_rest()
