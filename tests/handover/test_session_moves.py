"""A session over two decode and two prefill nodes. It stays on its node until the node rejects it
or dies. Its state is then pulled from there, not computed again, and no token differs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tasuki.client.answer import Answer
from tasuki.client.errors import ClientError
from tasuki.client.fleet import Fleet
from tasuki.client.moving_session import SessionTargets
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client, Session
from tests.harness.daemons import Node, flags, fleet, meet, random_prompt
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = needs_nixl

TURNS = 5
FIRST, MORE = 700, 90
NEW_TOKENS = 48
PATIENT = SessionTargets(hand_back=HANG_SECONDS)
"""However busy this machine is."""
CHOOSING = ("--route", "auto")
"""The choice among prefill nodes, by their known state."""
PULLING = ("--pull-tokens", "16", "--local-prefill-tokens", "16")


def added(turn: int) -> Prompt:
    return Prompt(token_ids=random_prompt(MORE if turn else FIRST, 50 + turn))


def take_turn(session: Session, turn: int) -> Answer:
    session.append(added(turn))
    return session.generate(max_new_tokens=NEW_TOKENS, ignore_eos=True).result()


@pytest.fixture(scope="module")
def undisturbed() -> list[tuple[int, ...]]:
    """Return a fused node's answers, turn by turn."""
    with fleet() as start, start("serve", *flags()).client.open_session() as session:
        return [take_turn(session, turn).token_ids for turn in range(TURNS)]


@dataclass
class Four:
    prefill: list[Node]
    decode: dict[str, Node]
    """By address."""

    def other(self, address: str) -> str:
        return next(node for node in self.decode if node != address)


@contextmanager
def four(*decode: str) -> Iterator[Four]:
    """Yield four nodes. decode: more flags of both decode nodes."""
    with fleet() as start:
        prefill = [start("prefill", *flags(), *PULLING) for _ in range(2)]
        known = ("--prefill", ",".join(node.handover_address for node in prefill))
        nodes = [start("decode", *flags(), *PULLING, *known, *CHOOSING, *decode) for _ in range(2)]
        for node in nodes:
            meet(node)
        yield Four(prefill, {node.address: node for node in nodes})


@contextmanager
def session_of(nodes: Four, targets: SessionTargets = PATIENT) -> Iterator[Session]:
    with Fleet([*nodes.decode]) as clients, clients.open_session(targets=targets) as session:
        yield session


def assert_resumed(answer: Answer, length: int) -> None:
    """Assert that all of the prompt's first `length` tokens but the last, never computed, were
    found."""
    hit = answer.usage.hit
    assert hit is not None and answer.usage.prefilled_on != "local"
    assert hit.usable_tokens == length - 1, hit


def length_after(turns: int) -> int:
    return FIRST + (turns - 1) * MORE + turns * NEW_TOKENS


def test_what_a_draining_node_holds_is_pulled_and_not_computed_again(
    undisturbed: list[tuple[int, ...]],
) -> None:
    with four() as nodes, session_of(nodes) as session:
        answers = [take_turn(session, turn) for turn in range(3)]
        left = session.node
        assert not session.moves
        nodes.decode[left].drain()
        answers += [take_turn(session, turn) for turn in range(3, TURNS)]
        (move,) = session.moves
        assert (move.left, move.entered, move.why) == (left, nodes.other(left), "draining")
        assert move.pulled_tokens == length_after(3) - 1
        assert session.node == move.entered
        for turn in range(3, TURNS):
            assert_resumed(answers[turn], length_after(turn))
        assert [answer.token_ids for answer in answers] == undisturbed
        for node in (*nodes.prefill, *nodes.decode.values()):
            node.assert_at_rest()
        assert nodes.decode[left].stats().sessions == 0


@pytest.mark.slow
def test_conversations_that_no_prefill_node_has_seen_are_pulled_too() -> None:
    """Their turns are short, so their decode node computed them itself and no other node knows
    them."""
    turns = [random_prompt(40, 70 + turn) for turn in range(5)]
    with four("--local-prefill-tokens", "64") as nodes, Fleet([*nodes.decode]) as clients:
        sessions = [clients.open_session(bytes([number]), PATIENT) for number in range(8)]
        left = sessions[0].node
        moving = [session for session in sessions if session.node == left]
        for turn in turns[:4]:
            for session in moving:
                session.append(Prompt(token_ids=turn))
                answer = session.generate(max_new_tokens=NEW_TOKENS, ignore_eos=True).result()
                assert answer.usage.prefilled_on == "local"
        nodes.decode[left].drain()
        held = 4 * (len(turns[0]) + NEW_TOKENS) - 1
        for session in moving:
            session.append(Prompt(token_ids=turns[4]))
            answer = session.generate(max_new_tokens=NEW_TOKENS, ignore_eos=True).result()
            (move,) = session.moves
            assert move.pulled_tokens == held
            print(move, answer.usage.prefilled_on, answer.usage.prefill_choice, answer.usage.route)
            assert_resumed(answer, held + 1)
        for session in sessions:
            session.close()


def test_a_node_that_dies_loses_no_turn(undisturbed: list[tuple[int, ...]]) -> None:
    with four() as nodes, session_of(nodes) as session:
        answers = [take_turn(session, turn) for turn in range(3)]
        left = session.node
        nodes.decode[left].kill()
        answers += [take_turn(session, turn) for turn in range(3, TURNS)]
        (move,) = session.moves
        assert (move.left, move.entered, move.pulled_tokens) == (left, nodes.other(left), None)
        # Its prompt's end is still at the prefill node; the answer after it is not.
        hit = answers[3].usage.hit
        assert hit is not None and hit.usable_tokens < length_after(3) - 1
        assert_resumed(answers[4], length_after(4))
        assert [answer.token_ids for answer in answers] == undisturbed


def test_a_node_that_dies_in_an_answer_has_it_asked_again_elsewhere(
    undisturbed: list[tuple[int, ...]],
) -> None:
    """A caller with some tokens already received asks once more; nothing of the conversation is
    lost."""
    with four() as nodes, session_of(nodes) as session:
        session.append(added(0))
        pieces = iter(session.generate(max_new_tokens=2000, ignore_eos=True))
        next(pieces)
        nodes.decode[session.node].kill()
        with pytest.raises(ClientError):
            list(pieces)
        answer = session.generate(max_new_tokens=NEW_TOKENS, ignore_eos=True).result()
        assert answer.token_ids == undisturbed[0]
        assert len(session.moves) == 1


def in_flight(node: Node) -> int:
    return sum(node.stats().requests.values())


def test_a_session_whose_tokens_come_late_leaves_a_full_node(
    undisturbed: list[tuple[int, ...]],
) -> None:
    """No answer meets the target; a session moves once all the same, not to and fro."""
    late = SessionTargets(between_tokens=1e-6, hand_back=HANG_SECONDS)
    with four("--max-batch", "2") as nodes, session_of(nodes, late) as session:
        answers = [take_turn(session, 0)]
        full = session.node
        with Client(full) as others:
            crowd = [
                others.generate(
                    Prompt(token_ids=random_prompt(20, 900 + number)),
                    max_new_tokens=3000,
                    ignore_eos=True,
                )
                for number in range(4)
            ]
            until(lambda: in_flight(nodes.decode[full]) == len(crowd), "they did not begin")
            answers += [take_turn(session, turn) for turn in range(1, TURNS)]
            for answer in crowd:
                answer.cancel()
        (move,) = session.moves
        assert (move.left, move.why) == (full, "slow")
        # On a busy machine a node with a late load report is asked again at the next turn.
        assert move.pulled_tokens in [length_after(turn) - 1 for turn in range(1, TURNS)]
        for turn in range(1, TURNS):
            assert_resumed(answers[turn], length_after(turn))
        assert [answer.token_ids for answer in answers] == undisturbed


@pytest.mark.slow
def test_sessions_that_are_opened_at_once_are_spread(undisturbed: list[tuple[int, ...]]) -> None:
    """All nodes are idle and report the same. Sessions stay on their nodes, so none is pulled."""
    with four() as nodes, Fleet([*nodes.decode]) as clients:
        sessions = [clients.open_session(bytes([number])) for number in range(8)]
        places = [session.node for session in sessions]
        assert min(places.count(node) for node in nodes.decode) >= 2, places
        for turn in range(2):
            for session in sessions:
                assert take_turn(session, turn).token_ids == undisturbed[turn]
        assert [session.node for session in sessions] == places
        for session in sessions:
            session.close()
