"""Ten turns over HTTP on a pair of real daemons, after a first prompt that is handed over. Each
resumes at the exact end of the turn before, by the stored response's id or by its messages."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness.daemons import Node
from tests.harness.running_nodes import HTTP, needs_nixl, node_pair
from tests.harness.sdk_clients import openai, openai_client

TURNS = 10
FIRST = "Tell me a story about the runner and the sash. " * 12


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    with node_pair(decode=HTTP) as nodes:
        yield nodes


def responses(client: "openai.OpenAI") -> Iterator[tuple[int, int]]:
    """Yield the tokens of the turn before, and the cached ones among them in the next turn."""
    name, before = None, 0
    for turn in range(TURNS):
        asked: dict[str, Any] = {"input": f"And {turn}? " + FIRST * (turn == 0)}
        told = client.responses.create(
            model="embedded",
            temperature=0,
            max_output_tokens=24,
            previous_response_id=name,
            **asked,
        )
        assert told.usage is not None
        yield before, told.usage.input_tokens_details.cached_tokens
        name, before = told.id, told.usage.total_tokens


def chats(client: "openai.OpenAI") -> Iterator[tuple[int, int]]:
    """Yield the same for a client that sends back each message unchanged."""
    messages: list[Any] = [{"role": "system", "content": FIRST}]
    before = 0
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"And {turn}?"})
        told = client.chat.completions.create(
            model="embedded", temperature=0, max_tokens=24, messages=messages
        )
        assert told.usage is not None and told.usage.prompt_tokens_details is not None
        yield before, told.usage.prompt_tokens_details.cached_tokens or 0
        messages.append(told.choices[0].message.model_dump(exclude_none=True))
        before = told.usage.total_tokens


@needs_nixl
@pytest.mark.parametrize("session", [responses, chats])
def test_ten_turns_resume_at_their_exact_ends(pair: tuple[Node, Node], session: Any) -> None:
    _, decode = pair
    arrived = decode.arrived()
    with openai_client(decode.http_address) as client:
        turns = list(session(client))
    assert decode.arrived() > arrived
    assert [cached == before - 1 for before, cached in turns[1:]] == [True] * (TURNS - 1), turns
