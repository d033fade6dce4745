"""Several answers to one prompt, and its logprobs, over gRPC and by the SDK, from a scripted
engine."""

import asyncio
from collections.abc import Iterator

import pytest

from tasuki.client.aio import AsyncClient
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tests.harness.grpc_fixtures import Front, running_front

PROMPT = Prompt(token_ids=[40, 41, 42])


@pytest.fixture
def front() -> Iterator[Front]:
    """Yield a front that answers each choice with one token more than its seed exceeds 40."""
    with running_front() as front:
        front.engine.answer = lambda submit: [7, 8, 9, 10][: submit.sampling.seed - 40 + 1]
        yield front


def test_the_sdk_reads_every_choice(front: Front) -> None:
    with Client(front.address) as client:
        stream = client.generate(PROMPT, n=3, seed=40, request_id="it")
        pieces = list(stream)
        answers = stream.results()
    assert [answer.token_ids for answer in answers] == [(7,), (7, 8), (7, 8, 9)]
    assert stream.result() == answers[0]
    assert {answer.usage.completion_tokens for answer in answers} == {1, 2, 3}
    for choice, answer in enumerate(answers):
        own = [token for piece in pieces if piece.choice == choice for token in piece.token_ids]
        assert tuple(own) == answer.token_ids and answer.prompt_logprobs is None
    (submit,) = front.engine.of(m.Submit)
    assert submit.answer_ids == ("it", "it-1", "it-2")
    assert [fork.seed for fork in submit.forks] == [41, 42]


def test_the_asyncio_sdk_reads_every_choice_and_the_scores(front: Front) -> None:
    async def ask() -> list[tuple[int, ...]]:
        async with AsyncClient(front.address) as client:
            answers = await client.generate(PROMPT, n=2, seed=40, prompt_logprobs=1).results()
            assert all(answer.prompt_logprobs for answer in answers)
            return [answer.token_ids for answer in answers]

    assert asyncio.run(ask()) == [(7,), (7, 8)]


@pytest.mark.parametrize("top", [0, 2])
def test_scores_of_the_prompt(front: Front, top: int) -> None:
    with Client(front.address) as client:
        scored = client.generate(PROMPT, seed=40, prompt_logprobs=top).result().prompt_logprobs
        assert scored is not None
        assert scored.logprobs == (-1.0, -2.0) and scored.ranks == (1, 2)
        likeliest = (((42, -0.25), (43, -0.5)), ((43, -0.25), (44, -0.5)))
        assert scored.top == (likeliest if top else ())


def test_scores_of_a_long_prompt_come_in_messages_of_bounded_length(front: Front) -> None:
    tokens = [40] * 3000
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=tokens), prompt_logprobs=0)
    request.sampling.seed = 40
    pieces = [
        response.prompt_logprobs
        for response in front.calls.inference.Generate(request)
        if response.WhichOneof("event") == "prompt_logprobs"
    ]
    assert [piece.first for piece in pieces] == [1, 1025, 2049]
    assert sum(len(piece.logprobs) for piece in pieces) == 2999


def test_nothing_may_be_drawn(front: Front) -> None:
    front.engine.answer = lambda submit: []
    with Client(front.address) as client:
        assert client.generate(PROMPT, max_new_tokens=0).result().token_ids == ()
        with client.open_session() as session:
            session.append(PROMPT)
            with pytest.raises(ClientError, match="max_new_tokens must be at least 1"):
                session.generate(max_new_tokens=0).result()


def test_too_many_choices_or_none_are_refused(front: Front) -> None:
    with Client(front.address) as client:
        with pytest.raises(ClientError, match="n must be in"):
            client.generate(PROMPT, n=129).results()
        with pytest.raises(ValueError, match="n must be at least 1"):
            client.generate(PROMPT, n=0)
    assert not front.engine.of(m.Submit)
