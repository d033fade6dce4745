"""A workload killing a node (SIGKILL) at every place and every layer chunk of a transfer, on both
sides, with real daemons.

The tokens must be right, the other node at rest, and the death noticed in a second. Thread rule:
one thread. Invariant: a Death is recorded only if every token was right and the survivor holds
nothing.
"""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from scripts.chaos.victims import CHUNK, Victims, state
from scripts.common.command import seed_option
from scripts.common.tally import Tally
from tasuki.client.answer import AnswerStream
from tasuki.client.errors import ClientError
from tasuki.proto import inference_pb2 as pb
from tasuki.transfer.failpoints import CHUNK_PLACES, Place
from tasuki.utils.options import option
from tests.harness.daemons import Node, Question, asked, questions
from tests.harness.waiting import until

_NOTICE_SECONDS = 1.0
_LOST = pb.PREFILL_NODE_STATE_LOST
_ANSWER_TOKENS = 8
_PROMPT_TOKENS = CHUNK + CHUNK // 2
"""Prompt length giving two forwards: the first sends pages, the last pages and the state."""


@dataclass(frozen=True)
class SweepSettings:
    fault: str = option("", "beginnings of places to die at, by commas: sender, receiver.on_done")
    sample: int = option(-1, "beside one of each phase, so many of the rest; -1: all points")
    seed: int | None = seed_option()
    patience: float = option(1.0, "factor on how soon a death must be noticed, for a busy host")


@dataclass(frozen=True)
class Point:
    """A point of a transfer for killing a node. chunk: sequence number of the layer chunk; None if
    the place is not tied to chunks."""

    place: Place
    chunk: int | None

    @property
    def sends(self) -> bool:
        """Return True if the sender is the killed node."""
        return self.place.value.startswith("sender.")

    def __str__(self) -> str:
        return self.place.value if self.chunk is None else f"{self.place.value}@{self.chunk}"


@dataclass(frozen=True)
class Death:
    """The outcome of one kill. noticed: seconds until the surviving node noticed. rested: seconds
    until it held nothing of the transfer. fell_back: True if the prompt was prefilled again."""

    point: Point
    noticed: float
    rested: float
    fell_back: bool

    def __str__(self) -> str:
        return (
            f"{self.point}: noticed in {1000 * self.noticed:.0f} ms, at rest in "
            f"{1000 * self.rested:.0f} ms{', prefilled anew' if self.fell_back else ''}"
        )


def every_point(chunks: int) -> tuple[Point, ...]:
    """Return every point of a transfer with `chunks` layer chunks. Places tied to chunks appear
    once for each chunk."""
    return tuple(
        Point(place, chunk)
        for place in Place
        for chunk in (range(chunks) if place in CHUNK_PLACES else (None,))
    )


def sample(points: tuple[Point, ...], seed: int | None, more: int) -> tuple[Point, ...]:
    """Return one point of each phase of each side, and `more` of the other points, chosen by the
    seed."""
    rng = random.Random(seed)
    phases: dict[str, list[Point]] = {}
    for point in points:
        phases.setdefault(_phase(point.place), []).append(point)
    found = [rng.choice(some) for some in phases.values()]
    rest = [point for point in points if point not in found]
    return (*found, *rng.sample(rest, min(more, len(rest))))


def _phase(place: Place) -> str:
    """Return the side and phase of a place without its "before" or "after", for example
    sender.ready."""
    side, _, moment = place.value.partition(".")
    return f"{side}.{moment.partition('_')[2]}"


def run(settings: SweepSettings, say: Callable[[str], None]) -> Tally:
    tally = Tally()
    for death in sweep(settings, tally):
        say(str(death))
    return tally


def sweep(settings: SweepSettings, tally: Tally) -> list[Death]:
    """Kill a node at every point in turn, and return the deaths. Raises ValueError if the settings
    select no place."""
    deaths = []
    (question,) = questions((_PROMPT_TOKENS,))
    # A few tokens, because the answer itself does not die here, and the death after Done comes at
    # its start.
    question = Question(question.prompt, question.tokens[:_ANSWER_TOKENS])
    salt = secrets.token_bytes(8)
    with Victims() as nodes:
        for number, point in enumerate(_points(settings, _chunks_of(nodes, question))):
            dies = _sender_dies if point.sends else _receiver_dies
            try:
                own = salt + number.to_bytes(4, "big")
                death = dies(nodes, question, point, own, _NOTICE_SECONDS * settings.patience)
            except AssertionError as error:
                tally.trouble("broken", f"{point}: {error}")
                continue
            deaths.append(death)
            tally.count("deaths")
            tally.count("prompts prefilled anew", int(death.fell_back))
            tally.disturbed(f"kill of the {'sender' if point.sends else 'receiver'}")
            tally.took("noticed", death.noticed)
            tally.took("at rest", death.rested)
    return deaths


def _points(settings: SweepSettings, chunks: int) -> tuple[Point, ...]:
    named = tuple(settings.fault.split(","))
    points = tuple(each for each in every_point(chunks) if each.place.value.startswith(named))
    if not points:
        raise ValueError(f"fault: no place begins with one of {', '.join(named)}")
    return points if settings.sample < 0 else sample(points, settings.seed, settings.sample)


def _chunks_of(nodes: Victims, question: Question) -> int:
    """Return the number of layer chunks of an undisturbed transfer. Raises AssertionError."""
    for salt in (b"undisturbed", b"on a slow host", b"on a very slow host"):
        before = nodes.other.arrived()
        answer = _ask(nodes.other, question, salt).result()
        assert answer.token_ids == question.tokens
        if not answer.usage.local_fallback:
            return nodes.other.arrived() - before
    raise AssertionError("nothing can be handed over here")


def _sender_dies(
    nodes: Victims, question: Question, point: Point, salt: bytes, seconds: float
) -> Death:
    """Let the sender die at the point, and check the answer and the survivor. salt: not used by an
    earlier request. seconds: time limit to notice the death. Raises AssertionError if a promise is
    broken."""
    victim, survivor = nodes.mortal_sender, nodes.receiver
    victim.reborn(str(point))
    nodes.met(survivor)
    stream = _ask(survivor, question, salt)
    died = victim.dies()
    left = seconds - (time.monotonic() - died)
    until(lambda: state(survivor) == _LOST, "the receiver has not noticed", left)
    noticed = time.monotonic() - died
    answer = stream.result()
    assert answer.token_ids == question.tokens, "another answer"
    survivor.assert_at_rest()
    return Death(point, noticed, time.monotonic() - died, answer.usage.local_fallback)


def _receiver_dies(
    nodes: Victims, question: Question, point: Point, salt: bytes, seconds: float
) -> Death:
    """Let the receiver die at the point, and check the surviving sender and the client's stream.
    Arguments and errors are those of _sender_dies."""
    victim, survivor = nodes.mortal_receiver, nodes.sender
    victim.reborn(str(point))
    nodes.met(victim)
    stream = _ask(victim, question, salt)
    died = victim.dies()
    # The sender has noticed the death once it drops the memory held for the dead node.
    until(survivor.at_rest, survivor.story, seconds - (time.monotonic() - died))
    noticed = time.monotonic() - died
    _nothing_wrong(stream, question)
    answer = _ask(nodes.other, question, salt).result()
    assert answer.token_ids == question.tokens, "another answer at the other decode node"
    assert not answer.usage.local_fallback, "the sender serves nobody any more"
    for node in (survivor, nodes.other):
        node.assert_at_rest()
    return Death(point, noticed, noticed, answer.usage.local_fallback)


def _nothing_wrong(stream: AnswerStream, question: Question) -> None:
    """Check the stream of a dead node: its tokens before the death are right, and the client gets
    an error."""
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
