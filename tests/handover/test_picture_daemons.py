"""Pictures over HTTP on a pair of real daemons: golden answers, ten turns, and deaths while a
picture is sent. The decode node has no tower, unless said otherwise."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import pytest

from tasuki.transfer import failpoints
from tests.handover.test_role_change import change
from tests.harness.covering import slow_behind
from tests.harness.daemons import Node, flags, fleet, meet
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.picture_answers import CASES, FOLDER, cached, chat, messages_of, part_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, needs_nixl
from tests.harness.waiting import until

pytestmark = [needs_goldens, needs_nixl]

BLIND = ("--vision", "off")
AWAY = ("--local-prefill-tokens", "0")
PRINTABLE = list(range(32, 127))
"""Tokens that a client's text gives back unchanged."""


def seeing(start: Any, *more: str, **environment: str) -> Node:
    launch = partial(ForkedDaemon, environment=environment)
    # Each turn is short, and comes back all the same.
    own = (*flags(FOLDER, arena_mib=16), "--pull-tokens", "1", *more)
    node: Node = start("prefill", *own, launch=launch)
    return node


def answering(start: Any, *prefill: Node, more: Any = BLIND, **environment: str) -> Node:
    launch = partial(ForkedDaemon, environment=environment)
    known = ("--prefill", ",".join(node.handover_address for node in prefill))
    shared = flags(FOLDER, arena_mib=16)
    node: Node = start("decode", *shared, *known, *HTTP, *AWAY, *more, launch=launch)
    meet(node)
    return node


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    with fleet() as start:
        prefill = seeing(start)
        decode = answering(start, prefill)
        yield prefill, decode
        prefill.assert_at_rest()
        decode.assert_at_rest()


FIRST = "mixed"
"""An image, a clip of frames, an image."""
NAMES = [name for name in (FIRST, *CASES) if name in CASES]


def is_golden(decode: Node, name: str, salt: str) -> None:
    """Assert the golden tokens of a case's answer."""
    case = CASES[name]
    reply = chat(decode, messages_of(case), len(case["greedy"]), cache_salt=salt)
    assert reply.status == 200, reply.body
    assert reply.json["prompt_token_ids"] == case["prompt"]
    assert reply.json["choices"][0]["token_ids"] == case["greedy"]


@pytest.mark.parametrize("name", slow_behind(1, {name: name for name in NAMES}))
def test_golden_answers(pair: tuple[Node, Node], name: str) -> None:
    _, decode = pair
    before = decode.arrived()
    for turn in ("cold", "again"):
        is_golden(decode, name, name)
        assert decode.arrived() > before, turn
        before = decode.arrived()


@pytest.mark.slow
@pytest.mark.parametrize("more", [BLIND, ()], ids=["blind", "tower"])
def test_clips_whose_hand_over_is_near_or_lost(more: tuple[str, ...]) -> None:
    """A decode node computes a clip by its own tower, or refuses it, once its peer has gone."""
    with fleet() as start:
        prefill = seeing(start)
        decode = answering(start, prefill, more=more)
        for name in ("video", "mixed"):
            is_golden(decode, name, "a pair")
        prefill.stop()
        for name in ("video", "mixed"):
            if more:
                reply = chat(decode, messages_of(CASES[name]), 4, cache_salt="alone")
                assert (reply.status, reply.json["error"]["code"]) == (503, "no_tower")
            else:
                is_golden(decode, name, "alone")
        decode.assert_at_rest()


def turn_of(number: int) -> dict[str, Any]:
    """Return the message of a turn; the first, fourth and seventh show a picture."""
    words = {"type": "text", "text": f"And {number}?"}
    if number % 3 or number == 9:
        return {"role": "user", "content": [words]}
    image = ("photo.jpg", "tiny.png", "gray.png")[number // 3]
    return {"role": "user", "content": [part_of({"type": "image", "image": image}), words]}


def test_ten_turns_with_three_pictures_resume_at_their_exact_ends(
    pair: tuple[Node, Node],
) -> None:
    """The client sends all pictures again. Each turn's state is pulled from the decode node."""
    _, decode = pair
    messages: list[dict[str, Any]] = []
    ended = 0
    for number in range(10):
        messages.append(turn_of(number))
        reply = chat(
            decode, messages, 12, cache_salt="turns", allowed_token_ids=PRINTABLE, ignore_eos=True
        )
        assert reply.status == 200, reply.body
        assert cached(reply) == ended, number
        choice, usage = reply.json["choices"][0], reply.json["usage"]
        messages.append({"role": "assistant", "content": choice["message"]["content"]})
        ended = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    arrived = decode.arrived()
    assert arrived


@pytest.mark.slow
def test_a_prefill_node_that_changes_its_role_and_comes_back() -> None:
    """Chats with images and clips go on meanwhile. No reply is wrong, and none is an error."""
    with fleet() as start:
        prefill = seeing(start)
        decode = answering(start, prefill, more=())
        salts = count()

        def until_over(over: threading.Event) -> int:
            asked = 0
            while not over.is_set():
                for name in ("mixed", "middle"):
                    is_golden(decode, name, f"{next(salts)}")
                    asked += 1
            return asked

        for role in ("decode", "prefill"):
            over = threading.Event()
            with ThreadPoolExecutor(2) as pool:
                callers = [pool.submit(until_over, over) for _ in range(2)]
                try:
                    change(prefill, role)
                finally:
                    over.set()
                assert all(caller.result() for caller in callers)
        meet(decode)
        before = decode.arrived()
        is_golden(decode, "mixed", "after")
        assert decode.arrived() > before
        prefill.assert_at_rest()
        decode.assert_at_rest()


def kill_at(place: failpoints.Place) -> dict[str, str]:
    return {failpoints.VARIABLE: f"{place.value}=kill"}


CASE = CASES.get("middle", {})


@pytest.mark.slow
def test_a_prefill_node_that_dies_at_a_piece_is_replaced_by_another() -> None:
    with fleet() as start:
        dying = seeing(start, "--name", "dying", **kill_at(failpoints.Place.SENDER_ON_PIECE))
        other = seeing(start, "--name", "other")
        decode = answering(start, dying, other)
        # Prompts at once go to both nodes, so one of them is lost at its piece.
        with ThreadPoolExecutor(8) as pool:
            asked = [pool.submit(is_golden, decode, "middle", f"{salt}") for salt in range(16)]
            for each in asked:
                each.result()
        until(lambda: dying.exit_status is not None, lambda: dying.last_words)
        dying.put_down()
        other.assert_at_rest()
        decode.assert_at_rest()


@pytest.mark.parametrize(
    ("more", "status"), slow_behind(1, {"blind": (BLIND, 503), "tower": ((), 200)})
)
def test_the_last_prefill_node_dies_at_a_piece(more: tuple[str, ...], status: int) -> None:
    with fleet() as start:
        dying = seeing(start, **kill_at(failpoints.Place.SENDER_ON_PIECE))
        decode = answering(start, dying, more=more)
        reply = chat(decode, messages_of(CASE), len(CASE["greedy"]))
        assert reply.status == status, reply.body
        if status == 200:
            assert reply.json["choices"][0]["token_ids"] == CASE["greedy"]
        else:
            assert reply.json["error"]["code"] == "no_tower"
        dying.put_down()
        decode.assert_at_rest()


def test_a_decode_node_that_dies_at_a_piece_leaves_nothing() -> None:
    with fleet() as start:
        prefill = seeing(start)
        dying = answering(start, prefill, **kill_at(failpoints.Place.RECEIVER_AFTER_PIECE))
        with pytest.raises(OSError):
            chat(dying, messages_of(CASE), len(CASE["greedy"]))
        dying.put_down()
        prefill.assert_at_rest()


def test_a_blind_prefill_node_computes_text_alone() -> None:
    with fleet() as start:
        prefill = seeing(start, *BLIND)
        decode = answering(start, prefill, more=())
        for name in ("text", "middle"):
            case = CASES[name]
            reply = chat(decode, messages_of(case), len(case["greedy"]))
            assert reply.json["choices"][0]["token_ids"] == case["greedy"], reply.body
