"""Attack by a decode node fetching hundreds of states from a prefill node. Most states do not
exist, or belong to others. The decode node grants, abandons or repeats the requests at random."""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import numpy as np

from scripts.attack.attack import Attempt
from scripts.attack.attacks.rogue_receiver import Stranger, judge_call, strangers
from scripts.attack.drawing import examples, messages
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.layout import PAGE_TOKENS

_TRANSFER_SECONDS = 10.0
_GENERATION = 7
_PAGES = 2
"""Pages of the attacker's prompt before the fetched state."""
_AT_ONCE = 100
_LONGEST = 1 << 20
"""Largest length in bytes of tokens or salt in a fetch request."""
_ODD_TRANSFERS = (0, 1, 2**63 - 1, 2**63)


@dataclass(frozen=True)
class _Held:
    """A state held by the prefill node: the tokens before it, and their salt."""

    tokens: tuple[int, ...]
    salt: bytes

    @property
    def spelt(self) -> bytes:
        return np.array(self.tokens, dtype="<i4").tobytes()


def rogue_fetch(attempt: Attempt) -> None:
    try:
        for (stranger,) in strangers(attempt, 1):
            _ask_for_many(attempt, stranger, _hold(attempt, stranger))
    except grpc.RpcError as error:
        attempt.tally.finding(f"the prefill node answers no more: {error.code().name}")


def _hold(attempt: Attempt, stranger: Stranger) -> _Held:
    """Let the prefill node compute a prompt under a new random salt. Returns the state it then
    holds."""
    salt = secrets.token_bytes(16)
    reserve = stranger.reserve(salt=salt)
    grant = pb.ReceiverMessage(grant=pb.Grant(generation=_GENERATION, pages=[0, 1, 2], slot=3))
    said = _talk(attempt, stranger, [reserve], grant)
    attempt.tally.note(f"a prompt ended by {said[-1].WhichOneof('message') if said else 'nothing'}")
    tokens = np.frombuffer(reserve.reserve.prompt, dtype="<i4")[: _PAGES * PAGE_TOKENS]
    return _Held(tuple(tokens.tolist()), salt)


def _ask_for_many(attempt: Attempt, stranger: Stranger, held: _Held) -> None:
    rng = attempt.rng
    others = examples(messages(pb.ReceiverMessage.DESCRIPTOR), rng, 20)
    openings = [_drawn(attempt, stranger, held) for _ in range(_AT_ONCE)]
    grant = pb.ReceiverMessage(
        grant=pb.Grant(generation=_GENERATION, pages=list(range(_PAGES)), slot=3)
    )
    answer = grant if rng.random() < 0.5 else rng.choice(others)
    said = _talk(attempt, stranger, openings, answer)
    sound = {
        message.room
        for message in openings
        if (message.fetch.tokens, message.fetch.salt) == (held.spelt, held.salt)
    }
    for message in said:
        kind = message.WhichOneof("message") or "nothing"
        attempt.tally.note(kind)
        if kind in ("accepted", "held", "done") and message.room not in sound:
            attempt.tally.finding(f"{kind} to a fetch of what is not held: room {message.room}")


def _drawn(attempt: Attempt, stranger: Stranger, held: _Held) -> pb.ReceiverMessage:
    """Return a fetch request for the held state, with one random fault or with none."""
    rng = attempt.rng
    spelt, salt = held.spelt, held.salt
    page = len(spelt) // _PAGES
    transfer_id, generation = None, _GENERATION
    match rng.randrange(8):
        case 0:
            # A state of the prompt may exist at a page's end, and giving it is right.
            cuts = [at for at in range(len(spelt)) if at % page or not at]
            spelt = spelt[: rng.choice(cuts)]
        case 1:
            spelt += rng.randbytes(rng.choice((1, 4, 256, _LONGEST)))
        case 2:
            at = rng.randrange(len(spelt))
            spelt = spelt[:at] + bytes([spelt[at] ^ 0x80]) + spelt[at + 1 :]
        case 3:
            salt = rng.choice((b"", b"right", salt[:-1], rng.randbytes(_LONGEST)))
        case 4:
            transfer_id = rng.choice(_ODD_TRANSFERS)
        case 5:
            generation = rng.choice((0, 2**63, 2**64 - 1))
        case _:
            pass
    return stranger.fetch(spelt, salt, transfer_id, generation)


def _talk(
    attempt: Attempt,
    stranger: Stranger,
    openings: list[pb.ReceiverMessage],
    answer: pb.ReceiverMessage,
) -> list[pb.SenderMessage]:
    """Open transfers in one batch. Send `answer` in the accepted ones, and wait for the data or
    leave at random. Returns all messages of the sender."""
    said: list[pb.SenderMessage] = []
    transfers = {message.room for message in openings}
    leaves = attempt.rng.random() < 0.3

    def over() -> bool:
        stranger.arrive()
        closed = {message.room for message in said if message.HasField("closed")}
        return closed >= transfers

    def batches() -> Iterator[pb.ReceiverBatch]:
        yield stranger.batch(*openings)
        deadline = time.monotonic() + _TRANSFER_SECONDS / 2
        answered: set[int] = set()
        while not over() and time.monotonic() < deadline:
            accepted = {message.room for message in said if message.HasField("accepted")}
            for transfer_id in accepted - answered:
                own = pb.ReceiverMessage()
                own.CopyFrom(answer)
                own.room = transfer_id
                yield stranger.batch(own)
            answered |= accepted
            if answered and leaves:
                return
            time.sleep(0.01)

    try:
        for batch in stranger.stub.Transfer(batches(), timeout=_TRANSFER_SECONDS):
            said += batch.messages
    except grpc.RpcError as error:
        judge_call(error, "a stream of fetches", attempt)
    return said
