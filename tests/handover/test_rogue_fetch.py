"""A receiver that breaks the rules of a fetch, at a real prefill daemon that holds a state: what
cannot be meant is refused by name, nobody is given what is not exactly there, and whatever is cut
off leaves nothing pinned."""

from collections.abc import Iterator
from contextlib import closing
from queue import SimpleQueue

import grpc
import numpy as np
import pytest

from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.handover.held_states import MOST_OF_A_NODE
from tasuki.model.named_checkpoints import embedded_model
from tasuki.proto import handover_pb2 as pb
from tests.handover.test_rogue_receiver import talk
from tests.harness.daemons import Node, flags, fleet, random_prompt
from tests.harness.rogue_receiver import Rogue
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = needs_nixl

SALT = b"tenant a"
PROMPT = random_prompt(130, 0)
"""As Rogue reserves it."""
HELD = 128
"""Tokens of it behind which a state stands."""
GENERATION = 7
GRANT = pb.Grant(generation=GENERATION, pages=[0, 1], slot=3)
MANY = 300
AT_ONCE = 150


def spelt(*ids: int) -> bytes:
    return np.array(ids, dtype="<i4").tobytes()


BEGINNING = spelt(*PROMPT[:HELD])


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    with fleet() as start:
        yield (node := start("prefill", *flags(arena_mib=16), "--transport", "nixl"))
        node.assert_at_rest()


def connected(prefill: Node) -> Rogue:
    config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=16)
    return Rogue(prefill, build_parts(config).layout)


@pytest.fixture(scope="module")
def rogue(prefill: Node) -> Iterator[Rogue]:
    with closing(connected(prefill)) as rogue:
        held = pb.Grant(generation=GENERATION, pages=[0, 1, 2], slot=3)
        told = talk(rogue, rogue.reserve(salt=SALT), pb.ReceiverMessage(grant=held))
        assert told[-1].WhichOneof("message") == "done"
        assert "done" in kinds(fetched(rogue, BEGINNING)), "this is what the attacks are about"
        yield rogue


def fetched(
    rogue: Rogue,
    tokens: bytes,
    salt: bytes = SALT,
    room: int | None = None,
    generation: int = GENERATION,
    grant: pb.Grant = GRANT,
) -> list[pb.SenderMessage]:
    """All that is said in the room, which is granted where that is wanted."""
    opening = rogue.fetch(tokens, salt, room, generation)
    told: list[pb.SenderMessage] = []

    def messages() -> Iterator[pb.ReceiverMessage]:
        yield opening
        until(lambda: bool(told), "deaf")
        if told[0].HasField("accepted"):
            yield pb.ReceiverMessage(grant=grant)
            until(lambda: rogue.is_over(told), "no end")

    for message in rogue.rooms(messages()):
        told.append(message)
    assert told[-1].HasField("closed") and {each.room for each in told} == {opening.room}
    return told


def kinds(told: list[pb.SenderMessage]) -> list[str]:
    return [str(message.WhichOneof("message")) for message in told]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tokens": b""}, "tokens is empty"),
        ({"tokens": BEGINNING[:-1]}, "tokens has 511 bytes"),
        ({"salt": b"s" * 2**20}, "salt has 1048576 bytes"),
        ({"room": 0}, "room 0 "),
        ({"room": 2**63}, "room 9223372036854775808 "),
        ({"generation": 2**63}, "generation 9223372036854775808 "),
    ],
    ids=["empty", "part of a token", "salt", "room 0", "room 2^63", "generation 2^63"],
)
def test_what_no_receiver_sends_opens_no_room(
    rogue: Rogue, prefill: Node, fields: dict[str, object], part: str
) -> None:
    (closed,) = fetched(rogue, **{"tokens": BEGINNING, **fields})
    assert part in closed.closed.reason
    prefill.assert_at_rest()


@pytest.mark.parametrize(
    ("tokens", "salt"),
    [
        (BEGINNING, b"tenant b"),
        (BEGINNING, b""),
        (spelt(*PROMPT[: HELD - 1]), SALT),
        (spelt(*PROMPT[: HELD + 1]), SALT),
        (spelt(*[-1] * HELD), SALT),
        (spelt(*[2**31 - 1] * HELD), SALT),
        (spelt(-(2**31)), SALT),
        (BEGINNING + bytes(2**22), SALT),
    ],
    ids=["another's", "nobody's", "shorter", "longer", "negative", "no token", "one", "a million"],
)
def test_what_is_not_held_is_given_to_nobody(
    rogue: Rogue, prefill: Node, tokens: bytes, salt: bytes
) -> None:
    told = fetched(rogue, tokens, salt)
    assert kinds(told) == ["refused", "closed"]
    assert told[0].refused.kind == pb.ERROR_KIND_NOT_HELD
    prefill.assert_at_rest()


def test_the_highest_room_is_one_and_is_used_once(rogue: Rogue, prefill: Node) -> None:
    room = 2**63 - 1
    assert kinds(fetched(rogue, BEGINNING, room=room)) == ["accepted", "held", "done", "closed"]
    (closed,) = fetched(rogue, BEGINNING, room=room)
    assert "is over" in closed.closed.reason
    prefill.assert_at_rest()


@pytest.mark.parametrize(
    ("grant", "part"),
    [
        ({"slot": 2**40}, "slot"),
        ({"pages": [0, 2**40]}, "page"),
        ({"pages": [0]}, "page"),
        ({"pages": []}, "page"),
        ({"pages": [0, 0]}, "twice"),
        ({"pages": [0, 1, 2]}, "page"),
        ({"first_page": 1000}, "page"),
        ({"generation": 8}, "generation 8"),
    ],
    ids=["slot", "page", "too few", "none", "twice", "too many", "far", "generation"],
)
def test_a_grant_that_cannot_be_written_ends_the_fetch(
    rogue: Rogue, prefill: Node, grant: dict[str, object], part: str
) -> None:
    fields = {"generation": GENERATION, "pages": [0, 1], "slot": 3, **grant}
    told = fetched(rogue, BEGINNING, grant=pb.Grant(**fields))
    failed = told[-2].failed
    assert told[-2].HasField("failed") and part in failed.reason, told
    assert failed.drain == pb.DRAIN_DRAINED and "done" not in kinds(told)
    prefill.assert_at_rest()


@pytest.mark.parametrize("again", ["grant", "fetch", "reserve"])
def test_what_a_room_does_not_expect_ends_it(rogue: Rogue, prefill: Node, again: str) -> None:
    opening = rogue.fetch(BEGINNING, SALT)
    more = {
        "grant": pb.ReceiverMessage(grant=GRANT),
        "fetch": opening,
        "reserve": pb.ReceiverMessage(reserve=rogue.reserve().reserve, room=opening.room),
    }[again]
    first = (pb.ReceiverMessage(grant=GRANT),) if again == "grant" else ()
    told: list[pb.SenderMessage] = []

    def batches() -> Iterator[pb.ReceiverBatch]:
        yield rogue.batch(opening)
        until(lambda: bool(told), "deaf")
        batch = rogue.batch(*first, more)
        for message in batch.messages:
            message.room = opening.room
        yield batch
        until(lambda: rogue.is_over(told), "no end")

    for batch in rogue.stub.Transfer(batches(), timeout=HANG_SECONDS):
        told += batch.messages
    assert "failed" in kinds(told) and kinds(told)[-1] == "closed", told
    prefill.assert_at_rest()


def test_of_hundreds_at_once_a_few_are_pinned_and_each_is_answered(
    rogue: Rogue, prefill: Node
) -> None:
    openings = [rogue.fetch(BEGINNING, SALT) for _ in range(MANY)]
    told: list[pb.SenderMessage] = []

    def of(kind: str) -> list[int]:
        return [each.room for each in told if each.HasField(kind)]

    def closed() -> bool:
        rogue.is_over(told)
        return len(of("closed")) == MANY

    def batches() -> Iterator[pb.ReceiverBatch]:
        for first in range(0, MANY, AT_ONCE):
            yield rogue.batch(*openings[first : first + AT_ONCE])
        until(lambda: len(of("accepted")) + len(of("refused")) == MANY, "deaf")
        grants = [pb.ReceiverMessage(grant=GRANT, room=room) for room in of("accepted")]
        yield rogue.batch(*grants)
        until(closed, "open")

    for batch in rogue.stub.Transfer(batches(), timeout=HANG_SECONDS):
        told += batch.messages
    # Copies end in threads of their own, so in any order.
    assert 0 < len(of("accepted")) <= MOST_OF_A_NODE
    assert sorted(of("done")) == sorted(of("accepted"))
    refusals = {each.refused.kind for each in told if each.HasField("refused")}
    assert refusals == {pb.ERROR_KIND_BUSY}
    prefill.assert_at_rest()


@pytest.mark.parametrize("step", ["asked", "accepted", "granted", "garbage", "disconnected"])
def test_a_fetch_that_is_cut_off_leaves_nothing(rogue: Rogue, prefill: Node, step: str) -> None:
    """Its receiver leaves, breaks the stream or loses the whole connection."""
    with closing(connected(prefill)) as leaving, grpc.insecure_channel(prefill.address) as channel:
        transfer = channel.stream_stream("/tasuki.handover.v1.Handover/Transfer")
        said: SimpleQueue[bytes | None] = SimpleQueue()
        opening = leaving.fetch(BEGINNING, SALT)
        said.put(leaving.batch(opening).SerializeToString())
        call = transfer(iter(said.get, None), timeout=HANG_SECONDS)
        if step != "asked":
            first = pb.SenderBatch.FromString(next(call))
            assert kinds(list(first.messages)) == ["accepted"]
        match step:
            case "granted":
                granted = pb.ReceiverMessage(grant=GRANT, room=opening.room)
                said.put(leaving.batch(granted).SerializeToString())
                next(call)
                call.cancel()
            case "garbage":
                said.put(b"\xff\xff\xff")
                rest = [pb.SenderBatch.FromString(data) for data in call]
                assert "failed" in kinds([each for batch in rest for each in batch.messages])
            case "disconnected":
                leaving.close()
                rest = [pb.SenderBatch.FromString(data) for data in call]
                assert kinds([each for batch in rest for each in batch.messages])[-1] == "closed"
            case _:
                call.cancel()
        said.put(None)
        prefill.assert_at_rest()
    assert kinds(fetched(rogue, BEGINNING))[-2] == "done", "others are given it as before"
