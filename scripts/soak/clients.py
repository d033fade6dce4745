"""One conversation of a soak, from its client's side: ask, perhaps leave, compare with the oracle.

Owns nothing that lasts. Thread rule: a conversation stays on one thread.
Invariant: every token that reached a client is judged, also where it left or the decode node died.
"""

import threading
from dataclasses import dataclass, field

from tasuki.client.answer import AnswerStream
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client

from scripts.soak.plan import Conversation, Turn
from scripts.soak.tally import Tally
from scripts.soak.world import World

_TURN_SECONDS = 120.0


@dataclass
class _Heard:
    """How one turn ended for its client."""

    tokens: list[int] = field(default_factory=list)
    error: Exception | None = None
    fell_back: bool = False
    pulled: bool = False


def converse(conversation: Conversation, world: World, tally: Tally, story: str) -> None:
    """story: which conversation of which round, for what goes wrong."""
    history = conversation.prefix
    for number, turn in enumerate(conversation.turns):
        prompt = (*history, *turn.tokens)
        told = f"{story}, turn {number}, {len(prompt)} tokens"
        deaths = world.wait_for_decode(_TURN_SECONDS * world.patience)
        heard = _ask(world, conversation.salt, prompt, turn)
        _count(heard, turn, world.decode_deaths > deaths, tally, told)
        with Client(world.oracle.address) as client:
            expected = _stream(client, conversation.salt, prompt, turn).result()
        tally.judge(heard.tokens, expected.token_ids, expected.margins, told)
        history = (*prompt, *expected.token_ids)


def _count(heard: _Heard, turn: Turn, decode_died: bool, tally: Tally, told: str) -> None:
    if heard.error is None:
        tally.count("answers")
        tally.count("local fallbacks", int(heard.fell_back))
        tally.count("pulls", int(heard.pulled))
        if len(heard.tokens) != turn.answer_tokens:
            tally.trouble("wrong", f"{told}: {len(heard.tokens)} of {turn.answer_tokens} tokens")
    elif turn.leave_after is not None:
        tally.count("left")
    elif decode_died:
        tally.count("lost with decode")
    else:
        tally.trouble("unexpected", f"{told}: {heard.error!r}")


def _ask(world: World, salt: bytes, prompt: tuple[int, ...], turn: Turn) -> _Heard:
    heard = _Heard()
    with Client(world.decode.address) as client:
        stream = _stream(client, salt, prompt, turn)
        patience = turn.leave_after
        if patience is None:
            patience = _TURN_SECONDS * world.patience
        leaving = threading.Timer(patience, stream.cancel)
        leaving.start()
        try:
            for piece in stream:
                heard.tokens.extend(piece.token_ids)
            usage = stream.result().usage
            heard.fell_back, heard.pulled = usage.local_fallback, usage.pulled is not None
        except (ClientError, ConnectionError) as error:
            heard.error = error
        finally:
            leaving.cancel()
            leaving.join()
    return heard


def _stream(client: Client, salt: bytes, prompt: tuple[int, ...], turn: Turn) -> AnswerStream:
    return client.generate(
        Prompt(token_ids=prompt),
        max_new_tokens=turn.answer_tokens,
        ignore_eos=True,
        cache_salt=salt,
    )
