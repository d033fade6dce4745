"""Tests of a session in a fleet: its first node, its reasons to leave, its calls to each node, and
its end."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from tasuki.client.answer import Answer
from tasuki.client.errors import ClientError, RetryPolicy
from tasuki.client.moving_session import (
    MOST_ASKED,
    DecodeNodes,
    Move,
    MovingSession,
    SessionTargets,
)
from tasuki.client.prompt import Prompt
from tasuki.client.session_protocol import Call, Conversation, Over, Pause, Steps, advance
from tasuki.engine.messages import FinishReason, Usage
from tasuki.proto import inference_pb2 as pb
from tests.harness.waiting import ManualClock

FAST = RetryPolicy(attempts=3, first_pause=0.001)
GONE = ClientError("refused", grpc.StatusCode.UNAVAILABLE, None)
DRAINING = ClientError("drains", grpc.StatusCode.UNAVAILABLE, "draining")
OVERLOADED = ClientError("late", grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded")
RATE = ClientError("much", grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited")
LOST = ClientError("which", grpc.StatusCode.NOT_FOUND, "unknown_session")


@dataclass
class Fleet:
    """A stand-in for every node. refusals: errors by node and method. asked: calls in order of
    arrival."""

    loads: dict[str, pb.SessionLoadResponse]
    refusals: dict[tuple[str, str], ClientError] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    pulled: int = 900

    def answer(self, call: Call) -> Any:
        self.asked.append((call.node, call.method))
        refusal = self.refusals.get((call.node, call.method))
        if refusal is not None:
            return refusal
        match call.method:
            case "Load":
                return self.loads[call.node]
            case "Open":
                return pb.SessionOpenResponse(session_id=f"{call.node}-{len(self.asked)}")
            case "HandBack":
                assert call.seconds is not None, "it must not wait for ever"
                response = pb.SessionHandBackResponse()
                response.pulled.tokens = self.pulled
                return response
            case "Fork":
                return pb.SessionForkResponse(session_id="fork")
        return pb.SessionAppendResponse(total_tokens=1)

    def take(self, steps: Steps[Any]) -> Any:
        outcome: Any = None
        for _ in range(1000):
            step = advance(steps, outcome)
            if isinstance(step, Over):
                return step.result
            assert isinstance(step, Call | Pause)
            outcome = self.answer(step) if isinstance(step, Call) else None
        raise AssertionError("the operation has no end")

    def calls(self, *methods: str) -> list[tuple[str, str]]:
        return [call for call in self.asked if call[1] in methods]


def said(step: float = 0.02, busy: float = 0.0, draining: bool = False) -> pb.SessionLoadResponse:
    return pb.SessionLoadResponse(step_seconds=step, busy=busy, free_kv=1.0, draining=draining)


Make = Callable[..., tuple[Fleet, MovingSession]]


@pytest.fixture
def make() -> Iterator[Make]:
    """Yield a maker of nodes a, b and so on, with an open session. The session is on a, the best
    node, and has a text."""

    def made(count: int = 2, **targets: Any) -> tuple[Fleet, MovingSession]:
        names = [chr(ord("a") + number) for number in range(count)]
        fleet = Fleet({name: said(0.02 * (1 + place)) for place, name in enumerate(names)})
        nodes = DecodeNodes(names)
        while True:
            session = MovingSession(Conversation(b""), FAST, nodes, SessionTargets(**targets))
            fleet.take(session.open())
            if session.node == "a":
                break
            fleet.take(session.close())
        fleet.take(session.append(Prompt(token_ids=[1])))
        fleet.asked.clear()
        return fleet, session

    yield made


def turn(fleet: Fleet, session: MovingSession) -> None:
    fleet.take(session.attempt_turn(pb.SessionGenerateRequest()))


def answer(gap: float, tokens: int = 20) -> Answer:
    usage = Usage(1, tokens, None, None, "", False, 0.5, 0.5 + gap * (tokens - 1))
    return Answer((1,) * tokens, "", FinishReason.STOP, usage, (), ())


def test_it_stays_where_it_is(make: Make) -> None:
    fleet, session = make()
    for _ in range(3):
        turn(fleet, session)
        session.turn_finished(answer(9.0))
        fleet.take(session.append(Prompt(token_ids=[2])))
    assert {node for node, _ in fleet.asked} == {"a"} and not fleet.calls("Load", "Open")


@pytest.mark.parametrize("refusal", [GONE, DRAINING, OVERLOADED])
def test_a_refused_turn_goes_on_elsewhere_with_its_state(make: Make, refusal: ClientError) -> None:
    fleet, session = make()
    assert session.turn_failed(refusal), "at once"
    turn(fleet, session)
    assert session.node == "b"
    assert fleet.calls("HandBack", "Open") == [("a", "HandBack"), ("b", "Open")]
    assert fleet.asked[-1] == ("a", "Close")
    why = refusal.kind or "unavailable"
    assert session.moves == [Move("a", "b", why, fleet.pulled)]


@pytest.mark.parametrize("refusal", [RATE, LOST])
def test_what_is_no_fault_of_the_node_is_no_reason_to_leave(
    make: Make, refusal: ClientError
) -> None:
    fleet, session = make()
    assert not session.turn_failed(refusal)
    turn(fleet, session)
    assert session.node == "a" and not fleet.calls("HandBack") and not session.moves


def test_what_cannot_be_handed_back_is_computed_again(make: Make) -> None:
    fleet, session = make()
    fleet.refusals["a", "HandBack"] = GONE
    session.turn_failed(GONE)
    turn(fleet, session)
    assert session.moves == [Move("a", "b", "unavailable", None)]


def test_nothing_is_asked_for_where_nothing_may_be_waited_for(make: Make) -> None:
    fleet, session = make(hand_back=0)
    session.turn_failed(DRAINING)
    turn(fleet, session)
    assert session.moves == [Move("a", "b", "draining", None)] and not fleet.calls("HandBack")


def test_a_node_that_refuses_the_opening_too_is_passed_over_and_state_asked_for_once(
    make: Make,
) -> None:
    fleet, session = make(4)
    for node in "bc":
        fleet.refusals[node, "Open"] = OVERLOADED
    session.turn_failed(DRAINING)
    fleet.take(session.append(Prompt(token_ids=[2])))
    assert session.node == "d" and len(fleet.calls("HandBack")) == 1
    assert [(move.left, move.entered) for move in session.moves] == [("a", "d")]


def test_where_all_refuse_the_last_refusal_is_raised_and_the_next_turn_tries_again(
    make: Make,
) -> None:
    fleet, session = make(3)
    for node in "bc":
        fleet.refusals[node, "Open"] = OVERLOADED
    session.turn_failed(OVERLOADED)
    with pytest.raises(ClientError) as raised:
        fleet.take(session.append(Prompt(token_ids=[2])))
    assert raised.value is OVERLOADED
    assert len(fleet.calls("Open")) == 2, "each was asked once"
    fleet.refusals.clear()
    fleet.take(session.append(Prompt(token_ids=[2])))
    turn(fleet, session)


def test_where_all_are_gone_attempts_are_bounded(make: Make) -> None:
    fleet, session = make(3)
    for node in "abc":
        for method in ("Load", "Open", "Append", "HandBack"):
            fleet.refusals[node, method] = GONE
    session.turn_failed(GONE)
    with pytest.raises(ClientError):
        fleet.take(session.append(Prompt(token_ids=[2])))
    assert len(fleet.calls("Open")) <= FAST.attempts * 3
    fleet.refusals.clear()
    assert fleet.take(session.append(Prompt(token_ids=[2]))) == 1


def test_a_slow_node_is_left_for_one_that_promises_better(make: Make) -> None:
    fleet, session = make(between_tokens=0.05)
    fleet.loads["a"] = said(0.08)
    fleet.loads["b"] = said(0.02)
    session.turn_finished(answer(0.08))
    turn(fleet, session)
    assert session.moves == [Move("a", "b", "slow", fleet.pulled)]
    session.turn_finished(answer(0.03))
    fleet.asked.clear()
    turn(fleet, session)
    assert session.node == "b" and not fleet.asked


@pytest.mark.parametrize(
    ("there", "gap", "tokens"),
    [(said(0.075), 0.08, 20), (said(0.02), 0.04, 20), (said(0.02), 0.08, 3)],
    ids=["no better there", "in time", "a few tokens"],
)
def test_else_it_stays(make: Make, there: pb.SessionLoadResponse, gap: float, tokens: int) -> None:
    fleet, session = make(between_tokens=0.05)
    fleet.loads.update(a=said(0.08), b=there)
    session.turn_finished(answer(gap, tokens))
    turn(fleet, session)
    assert session.node == "a" and not session.moves


def test_a_closed_session_goes_nowhere(make: Make) -> None:
    fleet, session = make(between_tokens=0.05)
    session.turn_finished(answer(1.0))
    fleet.take(session.close())
    fleet.refusals["a", "Append"] = LOST
    with pytest.raises(ClientError):
        fleet.take(session.append(Prompt(token_ids=[2])))
    assert not fleet.calls("Load", "HandBack", "Open")


def test_a_fork_stands_where_its_origin_does_and_moves_by_itself(make: Make) -> None:
    fleet, session = make()
    fork = fleet.take(session.fork())
    assert isinstance(fork, MovingSession) and fork.node == "a"
    fork.turn_failed(DRAINING)
    turn(fleet, fork)
    assert (fork.node, session.node) == ("b", "a")


def test_a_target_of_the_first_token_goes_with_each_turn(make: Make) -> None:
    _, session = make(first_token=1.5)
    assert session.metadata == (("x-slo-ttft-ms", "1500"),)


def test_nodes_that_failed_come_last_for_a_while() -> None:
    clock = ManualClock()
    nodes = DecodeNodes([f"n{number}" for number in range(20)], clock)
    assert len(nodes.in_turn(())) == MOST_ASKED
    small = DecodeNodes(["a", "b"], clock)
    small.failed("a")
    assert [small.in_turn(()) for _ in range(20)] == [["b", "a"]] * 20
    assert small.in_turn({"b"}) == ["a"] and {*small.in_turn({"a", "b"})} == {"a", "b"}
    clock.now += 5.0
    assert ["a", "b"] in [small.in_turn(()) for _ in range(100)]


def test_a_session_is_counted_at_one_node_from_its_choice_to_its_close() -> None:
    """Count each session at one node from its choice. Otherwise, sessions opened at one moment
    would see the same nodes empty."""
    fleet = Fleet({"a": said(), "b": said()})
    nodes = DecodeNodes(["a", "b"])
    sessions = [MovingSession(Conversation(b""), FAST, nodes, SessionTargets()) for _ in range(8)]
    opening = [session.open() for session in sessions]
    outcomes: list[Any] = [None] * len(opening)
    for method in ("Load", "Load", "Open"):
        for place, steps in enumerate(opening):
            step = advance(steps, outcomes[place])
            assert isinstance(step, Call) and step.method == method
            outcomes[place] = fleet.answer(step)
    assert [nodes.placed(node) for node in "ab"] == [4, 4]
    for session, steps in zip(sessions, opening, strict=True):
        steps.close()
        fleet.take(session.open())
        session.turn_failed(DRAINING)
        turn(fleet, session)
        fleet.take(session.close())
        fleet.take(session.close())
    assert [nodes.placed(node) for node in "ab"] == [0, 0]


@pytest.mark.parametrize("addresses", [[], ["a", "a"]])
def test_addresses_are_named_once(addresses: list[str]) -> None:
    with pytest.raises(ValueError, match="each once"):
        DecodeNodes(addresses)
