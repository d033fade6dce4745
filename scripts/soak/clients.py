"""One conversation of a soak, from its client's side: ask, perhaps leave, compare with the oracle.

Owns nothing that lasts. Thread rule: a conversation stays on one thread.
Invariant: every token that reached a client is judged, also where it left or the decode node died.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from scripts.soak.plan import Conversation, Turn
from scripts.soak.tally import Tally
from scripts.soak.world import World
from tasuki.client.answer import Answer, AnswerStream
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client

_TURN_SECONDS = 120.0


@dataclass
class _Outcome:
    """How one turn ended for its client."""

    tokens: list[int] = field(default_factory=list)
    error: Exception | None = None
    fell_back: bool = False
    pulled: bool = False
    loaded: int = 0
    drafted: int = 0
    accepted: int = 0


def expected(conversation: Conversation, world: World) -> list[Answer]:
    """What the undisturbed node answers, turn by turn."""
    history, answers = conversation.prefix, []
    with Client(world.oracle.address) as client:
        for turn in conversation.turns:
            prompt = (*history, *turn.tokens)
            answers.append(_stream(client, conversation.salt, prompt, turn).result())
            history = (*prompt, *answers[-1].token_ids)
    return answers


def converse(
    conversation: Conversation, answers: Sequence[Answer], world: World, tally: Tally, story: str
) -> None:
    """answers: as of expected(). story: which conversation of which round, for what goes wrong."""
    history = conversation.prefix
    for number, (turn, answer) in enumerate(zip(conversation.turns, answers, strict=True)):
        prompt = (*history, *turn.tokens)
        place = f"{story}, turn {number}, {len(prompt)} tokens"
        deaths = world.wait_for_decode(_TURN_SECONDS * world.patience)
        prediction = _broken(answer.token_ids, Random(place))
        outcome = _ask(world, conversation.salt, prompt, turn, prediction)
        _count(outcome, turn, world.decode_deaths > deaths, tally, place)
        tally.judge(outcome.tokens, answer.token_ids, answer.margins, place)
        history = (*prompt, *answer.token_ids)


def _count(outcome: _Outcome, turn: Turn, decode_died: bool, tally: Tally, place: str) -> None:
    if outcome.error is None:
        tally.count("answers")
        tally.count("local fallbacks", int(outcome.fell_back))
        tally.count("pulls", int(outcome.pulled))
        tally.count("loaded tokens", outcome.loaded)
        tally.count("drafts", outcome.drafted)
        tally.count("accepted drafts", outcome.accepted)
        if len(outcome.tokens) != turn.answer_tokens:
            tally.trouble("wrong", f"{place}: {len(outcome.tokens)} of {turn.answer_tokens} tokens")
    elif turn.leave_after is not None:
        tally.count("left")
    elif decode_died:
        tally.count("lost with decode")
    else:
        tally.trouble("unexpected", f"{place}: {outcome.error!r}")


def _broken(answer: tuple[int, ...], chance: Random) -> list[int]:
    """What the answer might be thought to be: about one token in six is another, new or missing."""
    found: list[int] = []
    for token in answer:
        found += chance.choices([[token], [token ^ 1], [], [token, 1]], (15, 1, 1, 1))[0]
    return found


def _ask(
    world: World, salt: bytes, prompt: tuple[int, ...], turn: Turn, prediction: Sequence[int]
) -> _Outcome:
    outcome = _Outcome()
    with Client(world.decode.address) as client:
        stream = _stream(client, salt, prompt, turn, prediction)
        patience = turn.leave_after
        if patience is None:
            patience = _TURN_SECONDS * world.patience
        leaving = threading.Timer(patience, stream.cancel)
        leaving.start()
        try:
            for piece in stream:
                outcome.tokens.extend(piece.token_ids)
            usage = stream.result().usage
            outcome.fell_back, outcome.pulled = usage.local_fallback, usage.pulled is not None
            outcome.loaded = sum(usage.hit.loaded.values())
            outcome.drafted, outcome.accepted = usage.drafted_tokens, usage.accepted_tokens
        except (ClientError, ConnectionError) as error:
            outcome.error = error
        finally:
            leaving.cancel()
            leaving.join()
    return outcome


def _stream(
    client: Client,
    salt: bytes,
    prompt: tuple[int, ...],
    turn: Turn,
    prediction: Sequence[int] = (),
) -> AnswerStream:
    return client.generate(
        Prompt(token_ids=prompt),
        prediction=prediction,
        max_new_tokens=turn.answer_tokens,
        ignore_eos=True,
        cache_salt=salt,
    )
