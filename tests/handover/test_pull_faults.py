"""Sessions through two real daemons over NIXL: nearly all that is eligible is cached, and a pull
that is killed, delayed or left costs time only."""

import random
from collections.abc import Iterator

import pytest

from scripts.chaos.victims import Victim, decode_flags, state, victim_flags
from tasuki.cli.request_story import story
from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt
from tasuki.proto import inference_pb2 as pb
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.harness.daemons import NEW_TOKENS, Node, asked, flags, fleet
from tests.harness.waiting import until

pytestmark = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")

LAYERS = 8
TURNS = 8
FIRST, ADDED = 2000, 100
HEAD, MORE = 300, 100
ROOM = ("--arena-mib", "96", "--prefill-chunk-tokens", "256", "--layers-per-window", "1")
NEVER_IN_PREFILL, NEVER_IN_DECODE = "receiver.before_reserve", "sender.on_grant"
"""Places of the other role: a life that is not to end."""


@pytest.fixture(scope="module")
def fused() -> Iterator[Node]:
    with fleet() as start:
        yield start("serve", *flags(arena_mib=96))


@pytest.fixture(scope="module")
def prefill() -> Iterator[Victim]:
    node = Victim("prefill", *victim_flags(), *ROOM).wait_ready()
    assert isinstance(node, Victim)
    yield node
    assert node.stop() == 0


@pytest.fixture(scope="module")
def decode(prefill: Victim) -> Iterator[Victim]:
    node = Victim("decode", *decode_flags(prefill), *ROOM).wait_ready()
    assert isinstance(node, Victim)
    yield node
    assert node.stop() == 0


def tokens_of(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(2000) for _ in range(length)]


def turn(node: Node, log: list[int], salt: str, new_tokens: int = NEW_TOKENS) -> Answer:
    return asked(node, tuple(log), salt.encode(), new_tokens).result()


@pytest.mark.slow
def test_a_session_finds_nearly_all_that_it_could(
    prefill: Victim, decode: Victim, fused: Node
) -> None:
    """Every turn goes to the prefill node, which has computed none of the answers."""
    log = tokens_of(FIRST, seed=1)
    known = eligible = cached = pulls = 0
    for number in range(TURNS):
        name = f"turn-{number}"
        answer = decode.client.generate(
            Prompt(token_ids=tuple(log)),
            request_id=name,
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
            cache_salt=b"session",
        ).result()
        assert answer.token_ids == turn(fused, log, "session").token_ids, number
        assert answer.usage.prefilled_on == "prefill" and not answer.usage.local_fallback
        assert answer.usage.hit is not None
        eligible += known
        cached += answer.usage.hit.usable_tokens
        if answer.usage.pulled is not None:
            pulls += 1
            assert answer.usage.pulled.tokens == answer.usage.hit.usable_tokens
            assert 0 < answer.usage.pulled.bytes < answer.usage.transfer.bytes * 2
            explained = decode.client.explain(name)
            assert sum(w.bytes for w in explained.pull.sender.windows) == answer.usage.pulled.bytes
            assert {"giver", "puller"} <= {line.split()[0] for line in story(explained)}
        log += answer.token_ids
        # The last token of an answer is never forwarded.
        known = len(log) - 1
        log += tokens_of(ADDED, seed=number)
    assert cached >= 0.95 * eligible, (cached, eligible)
    assert pulls == TURNS - 1
    for node in (prefill, decode):
        node.assert_at_rest()


def first_turn(decode: Node, fused: Node, name: str) -> tuple[list[int], tuple[int, ...]]:
    """The log that the second turn sends, and the tokens that it must be answered with."""
    log = tokens_of(HEAD, seed=len(name))
    log += turn(decode, log, name).token_ids
    log += tokens_of(MORE, seed=2)
    return log, turn(fused, log, name).token_ids


def meet(decode: Node) -> None:
    connected = pb.PREFILL_NODE_STATE_CONNECTED
    until(lambda: state(decode) == connected, "not connected")


@pytest.mark.parametrize("point", ["receiver.on_landed@0", f"receiver.after_landed@{LAYERS - 1}"])
def test_a_prefill_node_that_dies_while_it_pulls(
    prefill: Victim, decode: Victim, fused: Node, point: str
) -> None:
    prefill.reborn(point)
    meet(decode)
    log, expected = first_turn(decode, fused, point)
    stream = asked(decode, tuple(log), point.encode())
    prefill.dies()
    answer = stream.result()
    assert answer.token_ids == expected
    assert answer.usage.local_fallback and answer.usage.pulled is None
    decode.assert_at_rest()


@pytest.mark.parametrize("point", ["sender.before_post@0", f"sender.after_flush@{LAYERS - 1}"])
def test_a_decode_node_that_dies_while_it_is_pulled_from(
    prefill: Victim, decode: Victim, fused: Node, point: str
) -> None:
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
