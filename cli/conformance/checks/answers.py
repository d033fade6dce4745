"""Whole answers, their streams, ids and usage."""

from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import Unserved, must, must_equal
from tasuki.cli.conformance.question import Answer, Question

TEXT = Question('Say "It was so and so it is."')
_UNSTEADY = "two whole answers at temperature 0 differ too"


async def whole_reply(caller: Caller) -> None:
    await caller.whole(TEXT)


async def ordered_stream(caller: Caller) -> None:
    caller.api.must_be_ordered(await caller.events(TEXT))


async def whole_by_default(caller: Caller) -> None:
    """Without `stream` a reply is whole."""
    body = caller.api.body(caller.model, TEXT)
    del body["stream"]
    reply = await caller.endpoint.post(caller.api.path, body)
    must_equal("status", 200, reply.status)
    caller.api.whole(reply.json)


async def stream_is_whole(caller: Caller) -> None:
    """To the letter, white space too."""
    whole, streamed = await caller.whole(TEXT), await caller.streamed(TEXT)
    if whole.parts != streamed.parts and (await caller.whole(TEXT)).parts != whole.parts:
        raise Unserved(_UNSTEADY)
    must_be_alike(whole, streamed)


async def must_stream_alike(caller: Caller, question: Question, *features: str) -> Answer:
    """Return the whole answer, trimmed. Raises Departure where the stream makes another one but for
    white space around its texts, Unserved where two whole answers differ too."""
    whole = (await caller.whole(question, *features)).trimmed
    streamed = (await caller.streamed(question, *features)).trimmed
    if whole.parts != streamed.parts:
        again = (await caller.whole(question, *features)).trimmed
        if again.parts != whole.parts:
            raise Unserved(_UNSTEADY)
    must_be_alike(whole, streamed)
    return whole


def must_be_alike(whole: Answer, streamed: Answer) -> None:
    """Raises Departure, but for ids and usage."""
    for part, value in whole.parts.items():
        must_equal(f"{part} of the stream", value, streamed.parts[part])


async def usage_is_alike(caller: Caller) -> None:
    whole, streamed = await caller.whole(TEXT), await caller.streamed(TEXT)
    if whole.trimmed.parts != streamed.trimmed.parts:
        raise Unserved("the answers differ")
    must_equal("usage of the stream", whole.usage, streamed.usage)


async def usage_counts(caller: Caller) -> None:
    """Tokens of both sides are counted, and no more of the answer than were allowed."""
    answer = await caller.whole(TEXT)
    assert answer.usage is not None
    must(answer.usage.prompt > 0, "tokens of the prompt", "more than 0", answer.usage.prompt)
    allowed = f"1 to {TEXT.bound}"
    must(0 < answer.tokens <= TEXT.bound, "tokens of the answer", allowed, answer.tokens)


async def ids_differ(caller: Caller) -> None:
    answers = [await caller.whole(TEXT), await caller.streamed(TEXT), await caller.whole(TEXT)]
    ids = [answer.id for answer in answers]
    must(all(ids), "ids of three answers", "no empty one", ids)
    must(len({*ids}) == len(ids), "ids of three answers", "three ids", ids)
