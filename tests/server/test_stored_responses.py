"""The store of responses: whose they are, how many, how large, for how long."""

import random

import numpy as np
import pytest

from tasuki.server.auth.caller import OWNER, Caller
from tasuki.server.auth.request_context import RequestContext
from tasuki.server.responses.stored_responses import ResponseStore, StoredResponse, StoredTurn
from tasuki.server.text.chat_message import ChatMessage
from tests.harness.manual_clock import ManualClock

ANN, BOB = (RequestContext(Caller(name, tenant=name), tenant=name) for name in ("ann", "bob"))
HOST = RequestContext(OWNER)


def response(name: str, tokens: int = 0) -> StoredResponse:
    turn = StoredTurn(np.zeros(tokens, dtype=np.int32), (ChatMessage("user", "it"),), b"")
    return StoredResponse(name, b"{}", turn)


SIZE = response("").size


def store(
    clock: ManualClock | None = None, entries: int = 100, per_key: int = 0, seconds: float = 60.0
) -> ResponseStore:
    """entries: the capacity in responses of no tokens."""
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
