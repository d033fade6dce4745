"""A receiver that breaks the rules of a hand-over or of a fetch, at a real prefill daemon.

Each breach gets a typed status or ends its transfer with a reason. No receiver gets a state unless
it exists exactly. The daemon continues and holds nothing.
"""

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
from tests.harness.daemons import Node, flags, fleet, random_prompt
from tests.harness.rogue_receiver import Rogue
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = needs_nixl

FAILED = grpc.StatusCode.FAILED_PRECONDITION
GARBAGE = b"\xff\xff\xff"
SALT = b"tenant a"
PROMPT = random_prompt(130, 0)
"""The prompt reserved by Rogue: three pages."""
HELD = 128
"""Its tokens before a kept state: two pages."""
GENERATION = 7
MANY, AT_ONCE = 300, 150
HANDOVER, FETCH = "hand-over", "fetch"
PAGES = {HANDOVER: [0, 1, 2], FETCH: [0, 1]}


def spelt(*ids: int) -> bytes:
    return np.array(ids, dtype="<i4").tobytes()


BEGINNING = spelt(*PROMPT[:HELD])


def grant_of(kind: str, **changes: object) -> pb.Grant:
    return pb.Grant(**{"generation": GENERATION, "pages": PAGES[kind], "slot": 3, **changes})


def opening_of(rogue: Rogue, kind: str) -> pb.ReceiverMessage:
    return rogue.reserve() if kind == HANDOVER else rogue.fetch(BEGINNING, SALT)


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    with fleet() as start:
        yield (node := start("prefill", *flags(arena_mib=16), "--transport", "nixl"))
        node.assert_at_rest()


@pytest.fixture(autouse=True)
def at_rest(prefill: Node) -> Iterator[None]:
    """Assert after each test that the daemon holds nothing."""
    yield
    prefill.assert_at_rest()


def connected(prefill: Node) -> Rogue:
    config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=16)
    return Rogue(prefill, build_parts(config).layout)


@pytest.fixture(scope="module")
def rogue(prefill: Node) -> Iterator[Rogue]:
    with closing(connected(prefill)) as rogue:
        yield rogue


@pytest.fixture
def holder(rogue: Rogue) -> Rogue:
    """Make the prefill node hold the state after BEGINNING."""
    told = talk(rogue, rogue.reserve(salt=SALT), grant_of(HANDOVER))
    assert kinds(told)[-2:] == ["done", "closed"]
    return rogue


def talk(rogue: Rogue, opening: pb.ReceiverMessage, grant: pb.Grant) -> list[pb.SenderMessage]:
    """Return all messages of the transfer up to Closed, except its place in the queue. Send the
    grant if it is accepted."""
    told: list[pb.SenderMessage] = []

    def messages() -> Iterator[pb.ReceiverMessage]:
        yield opening
        until(lambda: bool(told), "deaf")
        if told[0].HasField("accepted"):
            yield pb.ReceiverMessage(grant=grant)
            until(lambda: rogue.is_over(told), "no end")

    for message in rogue.transfers(messages()):
        if not message.HasField("queued"):
            told.append(message)
    # No message follows the end.
    assert told[-1].HasField("closed") and {each.room for each in told} == {opening.room}
    return told


def kinds(told: list[pb.SenderMessage]) -> list[str]:
    return [str(message.WhichOneof("message")) for message in told]


def test_transport_metadata_that_cannot_be_read_is_refused(rogue: Rogue) -> None:
    head, _, blob = rogue.metadata.partition(b"\n")
    broken = [b"", b"{}", b"[]", b"null", GARBAGE, head, head + b"\n" + blob[: len(blob) // 2]]
    for metadata in [*broken, head + b"\n" + GARBAGE]:
        with pytest.raises(grpc.RpcError) as caught:
            rogue.connect(metadata)
        assert caught.value.code() is FAILED and "transport: " in caught.value.details()
    with pytest.raises(grpc.RpcError) as caught:
        rogue.connect(rogue.metadata, slabs=2**40)
    assert caught.value.code() is FAILED and "slabs" in caught.value.details()


def test_a_room_of_an_unknown_connection_or_without_reserve_is_refused(rogue: Rogue) -> None:
    stranger = pb.ReceiverBatch(connection_id="nobody", messages=[rogue.reserve()])
    for firsts in ([stranger], [pb.ReceiverBatch()], []):
        with pytest.raises(grpc.RpcError) as caught:
            list(rogue.stub.Transfer(iter(firsts), timeout=HANG_SECONDS))
        assert caught.value.code() is FAILED and "connection_id" in caught.value.details()
    grant = pb.ReceiverMessage(grant=pb.Grant())
    abort = pb.ReceiverMessage(abort=pb.Abort(generation=1))
    empty = pb.ReceiverMessage()
    # They may have crossed the end of a transfer, so they get no answer.
    unknown = rogue.batch(grant, abort, empty)
    assert not list(rogue.stub.Transfer(iter([unknown]), timeout=HANG_SECONDS))
    with pytest.raises(grpc.RpcError) as caught:
        rogue.stub.Abort(pb.AbortRequest(room=99, connection_id="nobody"), timeout=HANG_SECONDS)
    assert caught.value.code() is FAILED and "connection_id" in caught.value.details()


@pytest.mark.parametrize("kind", [HANDOVER, FETCH])
@pytest.mark.parametrize(
    ("pages", "changes", "part"),
    [
        (None, {"slot": 2**40}, "slot"),
        ([0, 2**40, 2], {}, "page"),
        ([0], {}, "page"),
        ([], {}, "page"),
        ([0, 0, 0], {}, "twice"),
        ([0, 1, 2, 3], {}, "page"),
        (None, {"first_page": 1000}, "page"),
        (None, {"generation": 8}, "generation 8"),
    ],
    ids=["slot", "page", "too few", "none", "twice", "too many", "far", "generation"],
)
def test_a_grant_that_cannot_be_written_ends_the_room(
    holder: Rogue, kind: str, pages: list[int] | None, changes: dict[str, object], part: str
) -> None:
    count = len(PAGES[kind])
    if pages is not None:
        changes = {**changes, "pages": pages if len(pages) > 3 else pages[:count]}
    told = talk(holder, opening_of(holder, kind), grant_of(kind, **changes))
    failed = told[-2].failed
    assert told[-2].HasField("failed") and part in failed.reason, told
    assert failed.drain == pb.DRAIN_DRAINED and "done" not in kinds(told)


@pytest.mark.parametrize(
    "transfer_request",
    [{"marks": [0]}, {"marks": [10**9]}, {"marks": [9, 5, 5]}, {"kv_matched": 2**32 - 1}],
    ids=["mark 0", "far mark", "marks in disorder", "more KV than prompt"],
)
def test_a_ticket_that_makes_no_sense_harms_nobody(
    rogue: Rogue, transfer_request: dict[str, object]
) -> None:
    for reserve in (rogue.reserve(**transfer_request), rogue.reserve()):
        told = talk(rogue, reserve, grant_of(HANDOVER))
    assert kinds(told)[-2] == "done"


def test_a_receiver_that_hangs_up_in_its_room_holds_nothing(rogue: Rogue, prefill: Node) -> None:
    for garbage in (b"", GARBAGE):
        with grpc.insecure_channel(prefill.address) as channel:
            transfer = channel.stream_stream("/tasuki.handover.v1.Handover/Transfer")
            messages: SimpleQueue[bytes | None] = SimpleQueue()
            messages.put(rogue.batch(rogue.reserve()).SerializeToString())
            call = transfer(iter(messages.get, None))
            until(lambda: prefill.requests("AwaitingGrant") == 1, prefill.story)
            if garbage:
                messages.put(garbage)
                batches = [pb.SenderBatch.FromString(data) for data in call]
                told = [message for batch in batches for message in batch.messages]
                failed = [message.failed for message in told if message.HasField("failed")]
                assert ["not the expected message" in each.reason for each in failed] == [True]
            else:
                call.cancel()
            messages.put(None)
        prefill.assert_at_rest()


def test_many_rooms_of_one_batch_go_their_own_ways(rogue: Rogue) -> None:
    """One is rejected, one is invalid and one completes: a batch has no meaning of its own."""
    sound, odd, refused = rogue.reserve(), rogue.reserve(), rogue.reserve(generation=2**63)
    told: list[pb.SenderMessage] = []
    transfers = [message.room for message in (sound, odd, refused)]

    def heard(transfer_id: int, *kinds: str) -> bool:
        return any(m.room == transfer_id and m.WhichOneof("message") in kinds for m in told)

    def batches() -> Iterator[pb.ReceiverBatch]:
        yield rogue.batch(sound, odd, refused)
        until(lambda: all(heard(transfer_id, "accepted") for transfer_id in transfers[:2]), "deaf")
        grants = [
            pb.Grant(generation=7, pages=pages, slot=3) for pages in ([0, 1, 2], [0, 1, 2**40])
        ]
        yield rogue.batch(
            *(
                pb.ReceiverMessage(grant=grant, room=transfer_id)
                for grant, transfer_id in zip(grants, transfers, strict=False)
            ),
            pb.ReceiverMessage(abort=pb.Abort(generation=7), room=10**6),
        )
        until(
            lambda: (
                rogue.is_over(told)
                and all(heard(transfer_id, "closed") for transfer_id in transfers)
            ),
            "open",
        )

    for batch in rogue.stub.Transfer(batches(), timeout=HANG_SECONDS):
        told += batch.messages
    kinds = {
        transfer_id: [
            m.WhichOneof("message")
            for m in told
            if m.room == transfer_id and not m.HasField("queued")
        ]
        for transfer_id in transfers
    }
    assert kinds == {
        transfers[0]: ["accepted", "ready", "done", "closed"],
        transfers[1]: ["accepted", "failed", "closed"],
        transfers[2]: ["closed"],
    }
    (why,) = [m.closed.reason for m in told if m.room == transfers[2]]
    assert "ticket.generation" in why


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"tokens": b""}, "tokens is empty"),
        ({"tokens": BEGINNING[:-1]}, "tokens has 511 bytes"),
        ({"salt": b"s" * 2**20}, "salt has 1048576 bytes"),
        ({"transfer_id": 0}, "room 0 "),
        ({"transfer_id": 2**63}, "room 9223372036854775808 "),
        ({"generation": 2**63}, "generation 9223372036854775808 "),
    ],
    ids=["empty", "part of a token", "salt", "room 0", "room 2^63", "generation 2^63"],
)
def test_what_no_receiver_sends_opens_no_room(
    rogue: Rogue, fields: dict[str, object], part: str
) -> None:
    opening = rogue.fetch(**{"tokens": BEGINNING, "salt": SALT, **fields})  # type: ignore[arg-type]
    (closed,) = talk(rogue, opening, grant_of(FETCH))
    assert part in closed.closed.reason


@pytest.mark.parametrize(
    ("tokens", "salt"),
    [
        (BEGINNING, b"tenant b"),
        (BEGINNING, b""),
        (spelt(*PROMPT[: HELD - 1]), SALT),
        (spelt(*PROMPT[: HELD + 1]), SALT),
        (spelt(*[2**31 - 1] * HELD), SALT),
        (BEGINNING + bytes(2**22), SALT),
    ],
    ids=["another's", "nobody's", "shorter", "longer", "no token", "a million"],
)
def test_what_is_not_held_is_given_to_nobody(holder: Rogue, tokens: bytes, salt: bytes) -> None:
    told = talk(holder, holder.fetch(tokens, salt), grant_of(FETCH))
    assert kinds(told) == ["refused", "closed"]
    assert told[0].refused.kind == pb.ERROR_KIND_NOT_HELD


@pytest.mark.parametrize("tokens", [[-1] * HELD, [-(2**31)]], ids=["all", "one"])
def test_keys_of_pictures_are_given_to_no_node_without_a_tower(
    holder: Rogue, tokens: list[int]
) -> None:
    (closed,) = talk(holder, holder.fetch(spelt(*tokens), SALT), grant_of(FETCH))
    assert "compare towers" in closed.closed.reason


def test_the_highest_room_is_one_and_is_used_once(holder: Rogue) -> None:
    opening = holder.fetch(BEGINNING, SALT, 2**63 - 1)
    told = talk(holder, opening, grant_of(FETCH))
    assert kinds(told) == ["accepted", "held", "done", "closed"]
    (closed,) = talk(holder, opening, grant_of(FETCH))
    assert "is over" in closed.closed.reason


@pytest.mark.parametrize("again", ["grant", "fetch", "reserve"])
def test_what_a_room_does_not_expect_ends_it(holder: Rogue, prefill: Node, again: str) -> None:
    opening = holder.fetch(BEGINNING, SALT)
    more = {
        "grant": pb.ReceiverMessage(grant=grant_of(FETCH)),
        "fetch": opening,
        "reserve": pb.ReceiverMessage(reserve=holder.reserve().reserve, room=opening.room),
    }[again]
    first = (pb.ReceiverMessage(grant=grant_of(FETCH)),) if again == "grant" else ()
    told: list[pb.SenderMessage] = []

    def batches() -> Iterator[pb.ReceiverBatch]:
        yield holder.batch(opening)
        until(lambda: bool(told), "deaf")
        batch = holder.batch(*first, more)
        for message in batch.messages:
            message.room = opening.room
        yield batch
        until(lambda: holder.is_over(told), "no end")

    for batch in holder.stub.Transfer(batches(), timeout=HANG_SECONDS):
        told += batch.messages
    assert "failed" in kinds(told) and kinds(told)[-1] == "closed", told


def test_of_hundreds_at_once_a_few_are_pinned_and_each_is_answered(
    holder: Rogue, prefill: Node
) -> None:
    openings = [holder.fetch(BEGINNING, SALT) for _ in range(MANY)]
    told: list[pb.SenderMessage] = []

    def of(kind: str) -> list[int]:
        return [each.room for each in told if each.HasField(kind)]

    def closed() -> bool:
        holder.is_over(told)
        return len(of("closed")) == MANY

    def batches() -> Iterator[pb.ReceiverBatch]:
        for first in range(0, MANY, AT_ONCE):
            yield holder.batch(*openings[first : first + AT_ONCE])
        until(lambda: len(of("accepted")) + len(of("refused")) == MANY, "deaf")
        grants = [
            pb.ReceiverMessage(grant=grant_of(FETCH), room=transfer_id)
            for transfer_id in of("accepted")
        ]
        yield holder.batch(*grants)
        until(closed, "open")

    for batch in holder.stub.Transfer(batches(), timeout=HANG_SECONDS):
        told += batch.messages
    # Copies end in threads of their own, so in any order.
    assert 0 < len(of("accepted")) <= MOST_OF_A_NODE
    assert sorted(of("done")) == sorted(of("accepted"))
    refusals = {each.refused.kind for each in told if each.HasField("refused")}
    assert refusals == {pb.ERROR_KIND_BUSY}


@pytest.mark.parametrize("step", ["asked", "accepted", "granted", "garbage", "disconnected"])
def test_a_fetch_that_is_cut_off_leaves_nothing(holder: Rogue, prefill: Node, step: str) -> None:
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
                granted = pb.ReceiverMessage(grant=grant_of(FETCH), room=opening.room)
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
        told = talk(holder, holder.fetch(BEGINNING, SALT), grant_of(FETCH))
    assert kinds(told)[-2] == "done", "others are given it as before"
