"""Tests of the store of responses: owners, count, size and lifetime."""

import json
import random
from collections.abc import Callable

import numpy as np
import pytest

from tasuki.server.auth.callers import OWNER, Caller
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.responses.stored_responses import (
    NO_MESSAGES,
    ResponseStore,
    StoredResponse,
    StoredTurn,
    TurnRecord,
    joined_messages,
    read_messages,
    written_messages,
)
from tasuki.server.text.chat_message import ChatMessage, ToolCall
from tasuki.server.text.text_answer import CallArguments, CallBegin, Content
from tests.harness.traced_memory import growing
from tests.harness.waiting import ManualClock

ANN, BOB = (RequestContext(Caller(name, tenant=name), tenant=name) for name in ("ann", "bob"))
HOST = RequestContext(OWNER)


def response(name: str, tokens: int = 0) -> StoredResponse:
    turn = StoredTurn.of(np.zeros(tokens, dtype=np.int32), (ChatMessage("user", "it"),), b"")
    return StoredResponse(name, b"{}", turn)


SIZE = response("").size


def store(
    clock: ManualClock | None = None, entries: int = 100, per_key: int = 0, seconds: float = 60.0
) -> ResponseStore:
    """Return a store. entries: capacity in responses without tokens."""
    return ResponseStore(clock or ManualClock(), entries * SIZE, per_key, seconds)


def kept(found: ResponseStore, context: RequestContext, *names: str) -> list[str]:
    return [name for name in names if found.get(context, name) is not None]


def test_a_response_is_found_by_its_own_key_and_tenant_alone() -> None:
    found = store()
    found.put(ANN, response("a"))
    assert found.get(ANN, "a") is not None
    for other in (BOB, HOST, RequestContext(ANN.caller, tenant="x"), RequestContext(ANN.caller)):
        assert found.get(other, "a") is None and not found.delete(other, "a")
    assert found.delete(ANN, "a") and not found.delete(ANN, "a")
    assert (len(found), found.used) == (0, 0)


def test_a_response_ends_with_its_lifetime() -> None:
    clock = ManualClock()
    found = store(clock, seconds=60)
    found.put(ANN, response("a"))
    clock.now += 59
    assert kept(found, ANN, "a")
    found.put(ANN, response("b"))
    clock.now += 1
    assert kept(found, ANN, "a", "b") == ["b"]
    clock.now += 59
    found.put(BOB, response("c"))
    assert (len(found), found.used) == (1, SIZE)


def test_of_one_key_s_the_longest_unused_goes_first() -> None:
    found = store(per_key=3)
    for name in "abc":
        found.put(ANN, response(name))
    found.put(BOB, response("z"))
    assert found.get(ANN, "a") is not None
    found.put(ANN, response("d"))
    assert kept(found, ANN, *"abcd") == ["a", "c", "d"]
    assert kept(found, BOB, "z")


def test_one_of_several_keys_has_at_most_half_of_the_bytes() -> None:
    found = store(entries=8)
    found.put(BOB, response("z"))
    for name in "abcdef":
        found.put(ANN, response(name))
    assert kept(found, ANN, *"abcdef") == [*"cdef"]
    assert kept(found, BOB, "z")
    for name in "hijklmnopq":
        found.put(HOST, response(name))
    assert kept(found, BOB, "z") and len(kept(found, ANN, *"cdef")) >= 3
    assert found.used <= 8 * SIZE


def test_what_alone_is_too_large_displaces_nothing() -> None:
    found = store(entries=4)
    found.put(ANN, response("a"))
    found.put(ANN, response("huge", tokens=4 * SIZE))
    assert kept(found, ANN, "a", "huge") == ["a"]
    nothing = store(entries=0)
    nothing.put(HOST, response("a"))
    assert len(nothing) == 0


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_whatever_is_asked(seed: int) -> None:
    drawn = random.Random(seed)
    clock = ManualClock()
    found = store(clock, entries=12, per_key=5, seconds=30)
    contexts = (ANN, BOB, HOST)
    for step in range(600):
        context = drawn.choice(contexts)
        name = f"{context.caller.name}{drawn.randrange(12)}"
        match drawn.randrange(4):
            case 0 | 1:
                if found.get(context, name) is None:
                    found.put(context, response(name, tokens=drawn.randrange(400)))
            case 2:
                found.delete(context, name)
            case 3:
                clock.now += drawn.random() * 4
        of = {other: found._of.get((other.caller.name, other.tenant), {}) for other in contexts}
        assert sum(map(len, of.values())) == len(found), step
        assert all(len(names) <= 5 for names in of.values())
        assert found.used == sum(sum(names.values()) for names in of.values()) <= 12 * SIZE
        assert all(sum(of[one].values()) <= 6 * SIZE for one in (ANN, BOB))


# --- Memory

_NESTED = "[" + ",".join(["[]"] * 20_000) + "]"
SHAPES: dict[str, Callable[[int], list[ChatMessage]]] = {
    "arguments of empty lists": lambda number: [
        ChatMessage("assistant", "", (ToolCall("f", {"a": json.loads(_NESTED)}),))
    ],
    "many small messages": lambda number: [
        ChatMessage("user", f"so {number} {place}") for place in range(500)
    ],
    "a long text": lambda number: [ChatMessage("user", f"{number} " + "so it was " * 10_000)],
    "four bytes a letter": lambda number: [
        ChatMessage("user", f"{number} " + "a\U0001f600" * 9000)
    ],
    "nearly nothing": lambda number: [ChatMessage("user", f"{number}")],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_store_holds_little_more_memory_than_it_counts(shape: str) -> None:
    count = 2000 if shape == "nearly nothing" else 20
    found = ResponseStore(ManualClock(), 1 << 30, 0, 60.0)

    def put(number: int) -> None:
        # An answer has its own objects: none is shared with another response.
        caller = Caller("ann" + str(number)[:0], tenant="ann")
        tokens = np.full(64, number, dtype=np.int32)
        record = TurnRecord(tokens, SHAPES[shape](number), b"context %d" % number)
        name = f"resp_{number:032x}"
        body = json.dumps({"id": name, "output": []}).encode()
        found.put(RequestContext(caller), StoredResponse(name, body, record.turn()))

    put(count)
    before_used = found.used
    with growing() as grown:
        for number in range(count):
            put(number)
        held = grown()
    counted = found.used - before_used
    assert held <= 1.25 * counted + 10_000
    assert counted <= 2 * held


def test_answer_of_a_call_of_nested_arguments_is_counted_by_its_bytes() -> None:
    record = TurnRecord(np.zeros(1, dtype=np.int32), (), b"")
    record.add(CallBegin(0, "call_1", "f"))
    record.add(CallArguments(0, f'{{"a": {_NESTED}}}'))
    with growing() as grown:
        turn = record.turn()
        assert grown() <= 1.25 * StoredResponse("resp", b"", turn).size


def test_response_that_left_the_store_leaves_nothing_there() -> None:
    found = store(entries=10, seconds=1e6)
    for number in range(20):
        found.put(ANN, response(f"before{number}"))
    with growing() as grown:
        for number in range(5000):
            found.put(ANN, response(f"r{number}"))
            found.delete(ANN, f"r{number}")
        assert grown() < 20_000


def test_response_put_twice_is_counted_once() -> None:
    found = store()
    for _ in range(3):
        found.put(ANN, response("a", tokens=10))
    assert (len(found), found.used) == (1, response("a", tokens=10).size)


MESSAGES = [
    ChatMessage("system", ""),
    ChatMessage("user", 'it "was" \\ \ud800 \U0001f600 \x00'),
    ChatMessage(
        "assistant",
        "fine",
        (
            ToolCall("f", {"a": [1, 2.5, None, True, {"b": []}], "n": 10**40, "s": "\udfff"}),
            ToolCall("g", {}),
        ),
        "so",
    ),
    ChatMessage("assistant", "", (), ""),
    ChatMessage("tool", "漢字"),
]


@pytest.mark.parametrize("cut", range(len(MESSAGES) + 1))
def test_messages_are_read_as_they_were_written(cut: int) -> None:
    first, second = written_messages(MESSAGES[:cut]), written_messages(MESSAGES[cut:])
    assert list(read_messages(joined_messages(first, second))) == MESSAGES
    assert written_messages([]) == NO_MESSAGES


def test_turn_of_an_answer_joins_the_conversation_before_it() -> None:
    record = TurnRecord(np.arange(3, dtype=np.int32), MESSAGES[:2], b"context")
    for token in (7, 8):
        record.add_token(token)
    for text in ("so ", "it ", "was") * 50:
        record.add(Content(text))
    record.add(CallBegin(0, "call_1", "f"))
    record.add(CallArguments(0, '{"a":'))
    record.add(CallArguments(0, "1}"))
    turn = record.turn()
    answer = ChatMessage("assistant", "so it was" * 50, (ToolCall("f", {"a": 1}),), "")
    assert list(turn.messages()) == [*MESSAGES[:2], answer]
    assert turn.tokens.tolist() == [0, 1, 2, 7, 8] and turn.context == b"context"
