"""Tests of conversations named by a client in a header or in the body, on every route. Operators
see a hash of the name, equal for equal names."""

from typing import Any

import pytest

from tests.harness.agent_front import AgentFront

USER = [{"role": "user", "content": "it was"}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "it was"},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/v1/responses": {"input": "it was"},
}
HEADER = "x-session-id"


def name(
    front: AgentFront, path: str, headers: dict[str, str] | None = None, **fields: Any
) -> str | None:
    reply = front.http.post(path, {**ROUTES[path], **fields}, headers)
    assert reply.status == 200, reply
    return front.submits()[-1].session


@pytest.mark.parametrize("path", ROUTES)
def test_the_header_names_a_conversation_on_every_route(front: AgentFront, path: str) -> None:
    assert name(front, path) is None
    first = name(front, path, {HEADER: "thread-7"})
    assert first is not None and first.startswith("key ") and "thread" not in first
    assert name(front, path, {HEADER: "thread-7"}) == first
    assert name(front, path, {HEADER: "thread-8"}) != first


def test_it_is_the_same_conversation_on_all_routes(front: AgentFront) -> None:
    assert len({name(front, path, {HEADER: "thread-7"}) for path in ROUTES}) == 1


def test_the_header_goes_before_the_body_and_an_empty_one_is_none(front: AgentFront) -> None:
    chats = "/v1/chat/completions"
    in_body = name(front, chats, metadata={HEADER: "a"}, prompt_cache_key="b")
    assert in_body == name(front, chats, {HEADER: "a"})
    assert in_body == name(front, chats, {HEADER: "a"}, metadata={HEADER: "c"})
    assert in_body == name(front, chats, {HEADER: ""}, prompt_cache_key="a")
    messages = name(front, "/v1/messages", {HEADER: "a"}, metadata={"user_id": "u"})
    assert messages == in_body


def test_a_header_s_bytes_need_not_be_text(front: AgentFront) -> None:
    odd = name(front, "/v1/chat/completions", {HEADER: "caf\xe9"})
    assert odd is not None and odd != name(front, "/v1/chat/completions", {HEADER: "cafe"})
