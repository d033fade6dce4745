"""Two prefill and two decode nodes. A turn goes to the node with its conversation, from either
decode node. A killed node costs no turn."""

from collections.abc import Callable, Iterator

import pytest

from tasuki.client.answer import Answer, AnswerStream
from tests.harness.daemons import Node, asked, flags, fleet, meet, random_prompt
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import until

pytestmark = needs_nixl

TURN = 300
ROUTED = ("--route", "cost", "--local-prefill-tokens", "0")


class Fleet:
    def __init__(self, start: Callable[..., Node]) -> None:
        self.prefill = {
            name: start("prefill", *flags(), "--name", name, "--route", "auto")
            for name in ("p1", "p2")
        }
        targets = ",".join(node.address for node in self.prefill.values())
        self.decode = [
            start("decode", *flags(), "--name", name, *ROUTED, "--prefill", targets)
            for name in ("d1", "d2")
        ]
        for node in self.decode:
            meet(node)

    def known(self, decode: Node) -> dict[str, int]:
        """Return the number of usable prefixes known to a decode node, by prefill node."""
        return {node.name: node.usable_prefixes for node in decode.stats().prefill_nodes}

    def indexed(self) -> None:
        """Wait until decode nodes know the prefixes of prefill nodes."""
        held = {
            name: node.stats().tree["checkpoints"]
            for name, node in self.prefill.items()
            if node.running
        }
        for decode in self.decode:
            until(
                lambda node=decode: all(self.known(node)[name] == n for name, n in held.items()),
                lambda node=decode: (held, self.known(node)),
            )


@pytest.fixture(scope="module")
def routed() -> Iterator[Fleet]:
    with fleet() as start:
        yield Fleet(start)


class Conversation:
    def __init__(self, number: int) -> None:
        self.salt = f"conversation {number}".encode()
        self._text = list(random_prompt(TURN, number))
        self._number = number

    def ask(self, decode: Node) -> AnswerStream:
        return asked(decode, tuple(self._text), self.salt, 8)

    def take(self, answer: Answer) -> None:
        self._text += [*answer.token_ids, *random_prompt(TURN, 1000 + self._number)]

    def turn(self, decode: Node) -> tuple[str, int, int]:
        """Return the prefill node's name, the tokens usable there, and the tokens of the prompt."""
        prompt = len(self._text)
        answer = self.ask(decode).result()
        usage = answer.usage
        assert usage.hit is not None and not usage.local_fallback
        self.take(answer)
        return usage.prefilled_on, usage.hit.usable_tokens, prompt


def test_a_turn_goes_to_the_node_that_holds_it_whichever_node_was_asked(routed: Fleet) -> None:
    conversations = [Conversation(number) for number in range(6)]
    first = [each.turn(routed.decode[n % 2])[0] for n, each in enumerate(conversations)]
    assert set(first) == {"p1", "p2"}, "what is equally good goes to who stored least"
    routed.indexed()
    for shift in (1, 0):
        for number, conversation in enumerate(conversations):
            where, usable, tokens = conversation.turn(routed.decode[(number + shift) % 2])
            assert where == first[number]
            assert usable > tokens - 2 * TURN
        routed.indexed()


def test_a_node_that_is_killed_costs_no_turn_and_its_conversations_go_on(routed: Fleet) -> None:
    conversations = [Conversation(number) for number in range(10, 14)]
    first = [each.turn(routed.decode[0])[0] for each in conversations]
    routed.indexed()
    streams = [each.ask(routed.decode[1]) for each in conversations]
    killed = first[0]
    routed.prefill[killed].kill()
    for each, stream in zip(conversations, streams, strict=True):
        each.take(stream.result())
    assert all(each.turn(routed.decode[0])[0] != killed for each in conversations)
    routed.prefill[killed].start_again()
    for decode in routed.decode:
        meet(decode)
    routed.indexed()
    others = {each.turn(routed.decode[1])[0] for each in conversations}
    assert others == {"p1", "p2"} - {killed}, "what they hold is where they went on"
