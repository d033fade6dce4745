"""A stopped decode daemon migrates its states to prefill nodes, its drain targets. Next turns
resume there with the tokens of an undisturbed node. The node ends even if a drain target fails."""

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tasuki.client.answer import AnswerStream
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client, Session
from tests.handover.test_role_change import change
from tests.handover.test_session_moves import CHOOSING, NEW_TOKENS, PULLING, Four, four
from tests.harness.daemons import Node, asked, flags, fleet, meet, random_prompt
from tests.harness.metrics_text import scraped
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import until

pytestmark = needs_nixl

SHORT = 40
TURNS = 3
SESSIONS = 4
HELD = TURNS * (SHORT + NEW_TOKENS) - 1
"""Tokens of a conversation; its last one was never computed."""
NOT_HANDED_OVER = ("--local-prefill-tokens", "64", "--http-bind", "127.0.0.1:0")
"""Turns this short are never sent to a prefill node."""
PATIENT = ("--drain-timeout", "600")
"""A drain timeout so long that no answer in flight is cut, even on a busy machine."""
ENDLESS = 3000
"""Tokens of an answer that stays in flight as long as a test needs."""


def asked_here(session: Session, number: int, turn: int) -> tuple[int, ...]:
    session.append(Prompt(token_ids=random_prompt(SHORT, 100 * number + turn)))
    answer = session.generate(max_new_tokens=NEW_TOKENS, ignore_eos=True).result()
    assert answer.usage.prefilled_on == "local"
    return answer.token_ids


def prompts_of(number: int) -> list[tuple[int, ...]]:
    return [random_prompt(SHORT, 100 * number + turn) for turn in range(TURNS + 1)]


@pytest.fixture(scope="module")
def undisturbed() -> list[list[tuple[int, ...]]]:
    """Return a fused node's answers by session and turn."""
    with fleet() as start:
        node, answers = start("serve", *flags()), []
        for number in range(SESSIONS):
            with node.client.open_session() as session:
                answers.append([asked_here(session, number, turn) for turn in range(TURNS + 1)])
        return answers


@contextmanager
def conversed(
    undisturbed: Sequence[Sequence[tuple[int, ...]]], *decode: str
) -> Iterator[tuple[Four, Node]]:
    """Yield four nodes, and the decode node that has run all turns of all sessions but the last.
    decode: more flags of decode nodes."""
    with four(*NOT_HANDED_OVER, *PATIENT, *decode) as nodes:
        left = next(iter(nodes.decode.values()))
        for number in range(SESSIONS):
            session = left.client.open_session()
            for turn in range(TURNS):
                assert asked_here(session, number, turn) == undisturbed[number][turn]
        yield nodes, left


def states_left(node: Node) -> dict[str, int]:
    """Return the numbers of states by outcome."""
    prefix = "tasuki_states_left_total{outcome="
    return {
        name.removeprefix(prefix).removesuffix("}"): int(value)
        for name, value in scraped(node.http_address).items()
        if name.startswith(prefix) and value
    }


def endless(node: Node) -> AnswerStream:
    stream = asked(node, random_prompt(SHORT, 999), b"", ENDLESS)
    next(iter(stream))
    return stream


def usable_elsewhere(
    nodes: Four, left: Node, undisturbed: Sequence[Sequence[tuple[int, ...]]]
) -> list[int]:
    """Return the usable tokens of each conversation's last turn. The turn goes to the other node in
    full, and its answer must be the undisturbed one."""
    found = []
    with Client(nodes.other(left.address)) as client:
        for number in range(SESSIONS):
            turns, answers = prompts_of(number), undisturbed[number]
            log = [*turns[0]]
            for before, turn in zip(answers[:TURNS], turns[1:], strict=True):
                log += [*before, *turn]
            answer = client.generate(
                Prompt(token_ids=tuple(log)), max_new_tokens=NEW_TOKENS, ignore_eos=True
            ).result()
            assert answer.token_ids == answers[TURNS]
            assert answer.usage.hit is not None
            found.append(answer.usage.hit.usable_tokens)
    return found


def assert_others_at_rest(nodes: Four, left: Node) -> None:
    for node in (*nodes.prefill, nodes.decode[nodes.other(left.address)]):
        if node.running:
            node.assert_at_rest()


@pytest.mark.parametrize(
    "processes",
    [(), pytest.param(("--front-workers", "2"), marks=pytest.mark.slow)],
    ids=["one process", "--front-workers 2"],
)
def test_what_no_prefill_node_has_is_taken_beside_an_answer_and_found_again(
    undisturbed: list[list[tuple[int, ...]]], processes: tuple[str, ...]
) -> None:
    with conversed(undisturbed, *processes) as (nodes, left):
        answer = endless(left)
        left.ask_to_stop()
        until(lambda: states_left(left).get("taken") == SESSIONS, lambda: states_left(left))
        assert left.exit_status is None, "the answer goes on"
        answer.cancel()
        assert left.stop() == 0
        assert usable_elsewhere(nodes, left, undisturbed) == [HELD] * SESSIONS
        assert_others_at_rest(nodes, left)


@pytest.mark.slow
def test_a_node_that_is_killed_leaves_nothing(
    undisturbed: list[list[tuple[int, ...]]],
) -> None:
    """The control: without a drain, other nodes find nothing."""
    with conversed(undisturbed) as (nodes, left):
        left.kill()
        assert usable_elsewhere(nodes, left, undisturbed) == [0] * SESSIONS


@pytest.mark.slow
def test_a_change_of_role_leaves_them_too(undisturbed: list[list[tuple[int, ...]]]) -> None:
    with conversed(undisturbed) as (nodes, left), ThreadPoolExecutor(1) as pool:
        answer = endless(left)
        changed = pool.submit(change, left, "prefill")
        until(lambda: states_left(left).get("taken") == SESSIONS, lambda: states_left(left))
        answer.cancel()
        changed.result()
        assert usable_elsewhere(nodes, left, undisturbed) == [HELD] * SESSIONS


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_heir_that_goes_holds_nobody_up(
    undisturbed: list[list[tuple[int, ...]]], number: signal.Signals
) -> None:
    with conversed(undisturbed) as (nodes, left):
        drain_target = nodes.prefill[0]
        try:
            left.ask_to_stop()
            os.kill(drain_target.pid, number)
            assert left.stop() == 0
        finally:
            if number is signal.SIGSTOP:
                os.kill(drain_target.pid, signal.SIGCONT)
            else:
                drain_target.put_down()
        found = usable_elsewhere(nodes, left, undisturbed)
        assert set(found) <= {0, HELD} or number is signal.SIGSTOP
        assert_others_at_rest(nodes, left)


@pytest.mark.slow
def test_all_heirs_gone_is_the_end(undisturbed: list[list[tuple[int, ...]]]) -> None:
    with conversed(undisturbed) as (nodes, left):
        for drain_target in nodes.prefill:
            drain_target.kill()
            drain_target.put_down()
        assert left.stop() == 0
        assert not any("Traceback" in line for line in left.last_words)


@contextmanager
def two(*decode: str) -> Iterator[tuple[Node, Node]]:
    """Yield a prefill node, and a decode node that hands nothing over to it. decode: more flags of
    the decode node."""
    with fleet() as start:
        drain_target = start("prefill", *flags(), *PULLING)
        known = (*CHOOSING, "--prefill", drain_target.handover_address)
        left = start("decode", *flags(), *PULLING, *known, *NOT_HANDED_OVER, *decode)
        meet(left)
        yield drain_target, left
        drain_target.assert_at_rest()


def test_a_second_signal_ends_it_at_once() -> None:
    with two(*PATIENT) as (_, left):
        for number in range(SESSIONS):
            asked_here(left.client.open_session(), number, 0)
        answer = endless(left)
        left.ask_to_stop()
        until(lambda: sum(states_left(left).values()) > 0, lambda: states_left(left))
        os.kill(left.pid, signal.SIGTERM)
        assert left.stop() == 128 + signal.SIGTERM
        answer.cancel()


def test_a_drain_that_is_over_leaves_nothing() -> None:
    with two("--drain-timeout", "0") as (_, left):
        asked_here(left.client.open_session(), 0, 0)
        answer = endless(left)
        assert left.stop() == 0
        answer.cancel()
