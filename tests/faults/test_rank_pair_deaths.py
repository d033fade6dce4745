"""Pairs of nodes, one with two ranks. A follower dies or freezes at each step of a hand-over. Every
request ends, with the right tokens or a typed error, and nothing is left."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tasuki.client.answer import AnswerStream
from tasuki.client.errors import ClientError
from tasuki.transfer import failpoints
from tests.harness.daemons import (
    COUNTED_CHUNKS,
    Node,
    Question,
    asked,
    flags,
    kept_address,
    meet,
    questions,
)
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.processes import ended, engine_of, followers_of
from tests.harness.running_nodes import CHUNKS, require_nixl
from tests.harness.waiting import until

RANKS = ("--tensor-parallel", "2", "--rank-timeout", "3")
ENDLESS = 2000
BEFORE, AFTER = failpoints.Place.SENDER_BEFORE_POST, failpoints.Place.SENDER_AFTER_FLUSH


@pytest.fixture(scope="module")
def told() -> Question:
    """Return the answers of one rank."""
    (question,) = questions((500,))
    return question


def resting(place: failpoints.Place, chunk: int) -> dict[str, str]:
    """Return the environment of a prefill node that pauses each transfer at this place and layer
    chunk."""
    return {failpoints.VARIABLE: f"{place.value}@{chunk}=delay:1.5"}


class RankedPair:
    def __init__(self, prefill: bool, environment: dict[str, str]) -> None:
        """Start the pair. prefill: the prefill node has two ranks, else the decode node."""
        require_nixl()
        first, second = (RANKS, ()) if prefill else ((), RANKS)
        self.prefill = Node(
            *("prefill", *flags(), *CHUNKS, *COUNTED_CHUNKS, *first),
            *("--handover-bind", kept_address()),
            bind=kept_address(),
            launch=partial(ForkedDaemon, environment=environment),
        ).wait_ready()
        known = ("--prefill", self.prefill.handover_address, "--local-prefill-tokens", "0")
        self.decode = Node(
            "decode", *flags(), *CHUNKS, *known, *second, bind=kept_address()
        ).wait_ready()
        self.broken = self.prefill if prefill else self.decode
        self.engine = engine_of(self.broken.pid)
        (self.follower,) = followers_of(self.engine)
        meet(self.decode)

    def ask(self, told: Question, tokens: int | None = None) -> AnswerStream:
        return asked(self.decode, told.prompt, b"", tokens or len(told.tokens))

    def assert_broken_node_ends(self, word: str) -> None:
        until(lambda: self.broken.exit_status is not None, "the node goes on without a rank")
        assert self.broken.stop() == 1
        assert any(word in line for line in self.broken.last_words), self.broken.last_words
        until(lambda: ended(self.engine) and ended(self.follower), "a rank outlives its node")


@contextmanager
def ranked_pair(prefill: bool, environment: dict[str, str]) -> Iterator[RankedPair]:
    pair = RankedPair(prefill, environment)
    try:
        yield pair
    finally:
        pair.decode.put_down()
        pair.prefill.put_down()


def breaks_while_handing_over(
    told: Question, place: failpoints.Place, chunk: int, number: int, word: str
) -> None:
    with ranked_pair(True, resting(place, chunk)) as pair:
        stream = pair.ask(told)
        until(lambda: pair.decode.arrived() >= chunk, pair.decode.story)
        os.kill(pair.follower, number)
        answer = stream.result()
        assert answer.token_ids == told.tokens
        pair.assert_broken_node_ends(word)
        pair.decode.assert_at_rest()
        pair.prefill.start_again()
        meet(pair.decode)
        again = asked(pair.decode, told.prompt, b"again", len(told.tokens)).result()
        assert again.token_ids == told.tokens and again.usage.prefilled_on == "prefill"
        assert pair.decode.stop() == 0


def test_a_follower_that_dies_while_its_node_hands_over(told: Question) -> None:
    breaks_while_handing_over(told, BEFORE, 9, signal.SIGKILL, "was ended by SIGKILL")


@pytest.mark.slow
@pytest.mark.parametrize("place", [BEFORE, AFTER])
@pytest.mark.parametrize("chunk", [0, 3, 17, 40])
def test_a_follower_that_dies_at_any_window(
    told: Question, place: failpoints.Place, chunk: int
) -> None:
    breaks_while_handing_over(told, place, chunk, signal.SIGKILL, "was ended by SIGKILL")


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, 9])
def test_a_follower_that_stands_still_while_its_node_hands_over(told: Question, chunk: int) -> None:
    breaks_while_handing_over(told, BEFORE, chunk, signal.SIGSTOP, "has said nothing for 3 s")


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, 9, 40])
def test_a_receivers_follower_that_dies_while_a_prompt_lands(told: Question, chunk: int) -> None:
    with ranked_pair(False, resting(BEFORE, chunk)) as pair:
        stream = pair.ask(told)
        until(lambda: pair.decode.arrived() >= chunk, pair.decode.story)
        os.kill(pair.follower, signal.SIGKILL)
        with pytest.raises(ClientError, match=r"rank 1 .* SIGKILL") as refused:
            stream.result()
        assert refused.value.kind == "internal"
        pair.assert_broken_node_ends("was ended by SIGKILL")
        pair.prefill.assert_at_rest()
        assert pair.prefill.stop() == 0


@pytest.mark.slow
def test_a_receivers_follower_that_dies_in_an_answer(told: Question) -> None:
    with ranked_pair(False, {}) as pair:
        stream = pair.ask(told, ENDLESS)
        next(iter(stream))
        os.kill(pair.follower, signal.SIGKILL)
        with pytest.raises(ClientError, match=r"rank 1 .* SIGKILL"):
            stream.result()
        pair.assert_broken_node_ends("was ended by SIGKILL")
        pair.prefill.assert_at_rest()
        pair.decode.start_again()
        meet(pair.decode)
        answer = asked(pair.decode, told.prompt, b"again", len(told.tokens)).result()
        assert answer.token_ids == told.tokens and answer.usage.prefilled_on == "prefill"
        assert (pair.decode.stop(), pair.prefill.stop()) == (0, 0)
