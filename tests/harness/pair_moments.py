"""Helpers bringing a prefill and a decode node to a moment of a transfer a test then disturbs.
number: index of the pair's question."""

from tasuki.client.answer import AnswerStream
from tasuki.engine.messages import Usage
from tests.harness.daemons import CHUNK_IN_TRANSFER, NEW_TOKENS, Pair
from tests.harness.waiting import until

LAYERS = 8


def read(stream: AnswerStream, tokens: int) -> None:
    """Read a stream until `tokens` tokens have reached the client."""
    segments = iter(stream)
    while tokens > 0:
        tokens -= len(next(segments).token_ids)


def in_first_chunk(pair: Pair, number: int) -> AnswerStream:
    stream = pair.ask(number)
    until(lambda: pair.prefill.requests("Prefilling") == 1, pair.prefill.story)
    return stream


def in_transfer(
    pair: Pair, number: int, chunks: int = 5 * LAYERS, new_tokens: int = NEW_TOKENS
) -> AnswerStream:
    """Send a question, and return in the middle of its transfer, when more than `chunks` layer
    chunks have arrived. The transfer pauses at CHUNK_IN_TRANSFER."""
    assert chunks < CHUNK_IN_TRANSFER
    before = pair.decode.arrived()
    stream = pair.ask(number, new_tokens)
    until(lambda: pair.decode.arrived() > before + chunks, pair.decode.story)
    assert pair.decode.requests("Receiving") == 1
    return stream


def handed_over(pair: Pair, number: int) -> Usage:
    """Send a question and run its whole transfer and answer. Returns the answer's usage."""
    usage = pair.right(number, pair.ask(number)).usage
    assert usage.prefilled_on == "prefill" and not usage.local_fallback
    assert usage.transfer is not None and usage.transfer.bytes > 0
    return usage
