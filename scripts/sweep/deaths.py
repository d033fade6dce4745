"""One point of a sweep: a daemon dies there, and what the others and the client must see.

Owns nothing that lasts. Thread rule: one thread. Invariant: a Death is returned only if every token
was right and the survivor holds nothing.
"""

import time
from dataclasses import dataclass

from scripts.sweep.points import Point
from scripts.sweep.world import World, state
from tasuki.client.answer import AnswerStream
from tasuki.client.errors import ClientError
from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import Node, Question, asked
from tests.harness.waiting import until

NOTICE_SECONDS = 1.0
_LOST = pb.PREFILL_NODE_STATE_LOST


@dataclass(frozen=True)
class Death:
    """noticed: seconds from the death until the survivor knew. rested: until it held nothing.
    fell_back: whether the answer was prefilled anew."""

    point: Point
    noticed: float
    rested: float
    fell_back: bool


def windows_of(world: World, question: Question) -> int:
    """Windows of an undisturbed hand-over."""
    for salt in (b"undisturbed", b"on a slow host", b"on a very slow host"):
        before = world.other.landed()
        answer = _ask(world.other, question, salt).result()
        assert answer.token_ids == question.tokens
        if not answer.usage.local_fallback:
            return world.other.landed() - before
    raise AssertionError("nothing can be handed over here")


def die(
    world: World, question: Question, point: Point, salt: bytes, patience: float = 1.0
) -> Death:
    """salt: of no request before. patience: factor on NOTICE_SECONDS. Raises
    AssertionError where something is not as promised."""
    try:
        if point.sends:
            return _sender_dies(world, question, point, salt, patience)
        return _receiver_dies(world, question, point, salt, patience)
    except AssertionError as error:
        raise AssertionError(f"{point}: {error}") from error


def _sender_dies(
    world: World, question: Question, point: Point, salt: bytes, patience: float
) -> Death:
    victim, survivor = world.mortal_sender, world.receiver
    victim.reborn(str(point))
    world.met(survivor)
    stream = _ask(survivor, question, salt)
    died = victim.dies()
    left = NOTICE_SECONDS * patience - (time.monotonic() - died)
    until(lambda: state(survivor) == _LOST, "the receiver has not noticed", left)
    noticed = time.monotonic() - died
    answer = stream.result()
    assert answer.token_ids == question.tokens, "another answer"
    survivor.assert_at_rest()
    return Death(point, noticed, time.monotonic() - died, answer.usage.local_fallback)


def _receiver_dies(
    world: World, question: Question, point: Point, salt: bytes, patience: float
) -> Death:
    victim, survivor = world.mortal_receiver, world.sender
    victim.reborn(str(point))
    world.met(victim)
    stream = _ask(victim, question, salt)
    died = victim.dies()
    # The sender has noticed when it drops what it held for the dead one.
    left = NOTICE_SECONDS * patience - (time.monotonic() - died)
    until(survivor.at_rest, survivor.story, left)
    noticed = time.monotonic() - died
    _nothing_wrong(stream, question)
    answer = _ask(world.other, question, salt).result()
    assert answer.token_ids == question.tokens, "another answer at the other decode node"
    assert not answer.usage.local_fallback, "the sender serves nobody any more"
    for node in (survivor, world.other):
        node.assert_at_rest()
    return Death(point, noticed, noticed, answer.usage.local_fallback)


def _nothing_wrong(stream: AnswerStream, question: Question) -> None:
    """The tokens before the death are right, and the client gets an error."""
    tokens: list[int] = []
    try:
        for piece in stream:
            tokens.extend(piece.token_ids)
    except ClientError:
        assert tuple(tokens) == question.tokens[: len(tokens)], "wrong tokens before the death"
        return
    raise AssertionError("the client got no error when its decode node died")


def _ask(node: Node, question: Question, salt: bytes) -> AnswerStream:
    return asked(node, question.prompt, salt, len(question.tokens))
