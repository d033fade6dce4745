"""A lost hand-over is retried at another prefill node before the prompt is prefilled locally."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tasuki.client.answer import AnswerStream
from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import (
    CHUNK_IN_TRANSFER,
    COUNTED_CHUNKS,
    Node,
    Question,
    asked,
    flags,
    fleet,
    questions,
    resting_at,
)
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import until

pytestmark = needs_nixl

LAYERS = 8
CONNECTED = pb.PREFILL_NODE_STATE_CONNECTED


class Trio:
    """Two slow prefill nodes and a decode node; each question has a salt of its own."""

    def __init__(self, question: Question, start: Callable[..., Node]) -> None:
        self._question = question
        self._salts = 0
        slow = ("--prefill-chunk-tokens", "64", "--max-batch", "1", *COUNTED_CHUNKS)
        launch = partial(ForkedDaemon, environment=resting_at(CHUNK_IN_TRANSFER))
        self.prefill = {
            name: start("prefill", *flags(), "--name", name, *slow, launch=launch)
            for name in ("p1", "p2")
        }
        targets = ",".join(node.address for node in self.prefill.values())
        self.decode = start("decode", *flags(), "--prefill", targets)

    def ask(self) -> AnswerStream:
        self._salts += 1
        return asked(self.decode, self._question.prompt, str(self._salts).encode())

    def busy(self) -> str:
        """Return the name of the prefilling node, once there is one; a quick node pauses in its
        hand-over."""
        found: list[str] = []

        def one() -> bool:
            found[:] = [
                name
                for name, node in self.prefill.items()
                if node.running and (node.requests("Prefilling") or node.requests("HandingOver"))
            ]
            return bool(found)

        until(one, "no node prefills")
        return found[0]

    def fix(self) -> None:
        for node in self.prefill.values():
            if not node.running:
                node.start_again()

        def states() -> list[int]:
            return [peer.state for peer in self.decode.stats().prefill_nodes]

        until(lambda: states() == [CONNECTED] * 2, states)


@pytest.fixture(scope="module")
def question() -> Question:
    return questions((2000,))[0]


@pytest.fixture(scope="module")
def standing(question: Question) -> Iterator[Trio]:
    with fleet() as start:
        yield Trio(question, start)


@pytest.fixture
def trio(standing: Trio) -> Iterator[Trio]:
    standing.fix()
    yield standing
    standing.decode.assert_at_rest()


def test_a_node_that_dies_in_the_middle_is_replaced(trio: Trio, question: Question) -> None:
    before = trio.decode.arrived()
    stream = trio.ask()
    name = trio.busy()
    until(lambda: trio.decode.arrived() > before + 5 * LAYERS, trio.decode.story)
    trio.prefill[name].kill()
    answer = stream.result()
    assert answer.token_ids == question.tokens
    assert answer.usage.prefilled_on == ({"p1", "p2"} - {name}).pop()
    assert not answer.usage.local_fallback and answer.usage.transfer is not None


def test_after_the_second_node_the_prompt_is_prefilled_here(trio: Trio, question: Question) -> None:
    stream = trio.ask()
    first = trio.busy()
    trio.prefill[first].kill()
    second = trio.busy()
    trio.prefill[second].kill()
    answer = stream.result()
    assert answer.token_ids == question.tokens
    assert answer.usage.local_fallback and answer.usage.prefilled_on == "local"
