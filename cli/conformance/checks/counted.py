"""Tokens of a Messages prompt, counted without an answer."""

from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import Unserved, must_equal
from tasuki.cli.conformance.shape import must_have

from .answers import TEXT


async def count_is_usage(caller: Caller) -> None:
    body = caller.api.body(caller.model, TEXT)
    counted = {key: body[key] for key in ("model", "messages")}
    reply = await caller.endpoint.post(f"{caller.api.path}/count_tokens", counted)
    if reply.status in (404, 405, 501):
        raise Unserved(f"no count_tokens here: {reply.status}")
    must_equal("status", 200, reply.status)
    must_have({"input_tokens": int}, reply.json, "body")
    answer = await caller.whole(TEXT)
    assert answer.usage is not None
    must_equal("input_tokens", answer.usage.prompt, reply.json["input_tokens"])
