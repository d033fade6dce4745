"""Checks of the rest of an endpoint: APIs, models, stored responses, refusals.

Covers whether an API exists, and the list of models.

Refusals are checked for their status and their shape.

Stored responses are read again, continued, and deleted.
"""

from dataclasses import replace
from typing import Any

from tasuki.cli.conformance.api import Api, BadRequest, Question
from tasuki.cli.conformance.check import Caller, Check
from tasuki.cli.conformance.endpoint import Endpoint
from tasuki.cli.conformance.openai_api import must_be_openai_error
from tasuki.cli.conformance.outcome import (
    NUMBER,
    Departure,
    Unserved,
    must,
    must_equal,
    must_have,
    shown,
)

from .answers import TEXT

_HELLO = Question("Hello.", bound=16)


async def served(caller: Caller) -> None:
    """Check that the endpoint serves the API. Raises Unserved if its path is unknown, Departure if
    the server does not know the caller's model."""
    api = caller.api
    reply = await caller.endpoint.post(api.path, api.body(caller.model, _HELLO))
    words = reply.body.decode(errors="replace")
    if reply.status == 404 and caller.model in words:
        raise Departure("status", 200, f"404 {shown(words)}: give --model NAME")
    if reply.status in (404, 405, 501):
        raise Unserved(f"no {api.path} here: {reply.status}")


PATH = "/v1/models"
_MODEL = {"id": str, "object": {"model"}, "created": NUMBER, "owned_by": str}


async def listed_models(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Return the endpoint's list of models. Raises Unserved if the endpoint has no list, Departure
    for a malformed list."""
    reply = await endpoint.get(PATH)
    if reply.status in (404, 405, 501):
        raise Unserved(f"no {PATH} here: {reply.status}")
    must_equal(f"status of {PATH}", 200, reply.status)
    must_have({"object": {"list"}, "data": [{"id": str}]}, reply.json, "body")
    found: list[dict[str, Any]] = reply.json["data"]
    return found


async def listed(caller: Caller) -> None:
    models = await listed_models(caller.endpoint)
    must_have([_MODEL], models, "data")
    names = [model["id"] for model in models]
    must(caller.model in names, "ids of the list", f"{caller.model} among them", names)


async def one_model(caller: Caller) -> None:
    await listed_models(caller.endpoint)
    reply = await caller.endpoint.get(f"{PATH}/{caller.model}")
    if reply.status in (405, 501):
        raise Unserved(f"models cannot be asked for one by one: {reply.status}")
    must_equal("status", 200, reply.status)
    must_have(_MODEL, reply.json, "body")
    must_equal("id", caller.model, reply.json["id"])


async def unknown_model(caller: Caller) -> None:
    reply = await caller.endpoint.get(f"{PATH}/no-such-model")
    if reply.status in (405, 501):
        raise Unserved(f"models cannot be asked for one by one: {reply.status}")
    must_equal("status", 404, reply.status)
    must_be_openai_error(reply)


def refusals(api: Api) -> list[Check]:
    """Return one check for each kind of bad request to the API: the server must refuse it."""
    return [_refusal(number, bad) for number, bad in enumerate(api.bad_requests("model"))]


def _refusal(number: int, bad: BadRequest) -> Check:
    async def run(caller: Caller) -> None:
        body = caller.api.bad_requests(caller.model)[number].body
        reply = await caller.endpoint.post_bytes(caller.api.path, body)
        expected = " or ".join(map(str, sorted(bad.statuses)))
        must(reply.status in bad.statuses, "status", expected, reply.status)
        caller.api.must_be_error(reply)

    return Check(f"{bad.what}: a refusal of the API's shape", run)


_STORED = replace(TEXT, fields=(("store", True),))
_SAME = ("id", "status", "output", "usage", "model", "created_at")


async def stored_is_retrieved(caller: Caller) -> None:
    first = await _stored(caller)
    again = (await caller.endpoint.get(_path(caller, first))).json
    for name in _SAME:
        must_equal(name, first[name], again.get(name))


async def stored_is_gone_on_from(caller: Caller) -> None:
    first = await _stored(caller)
    follow = replace(TEXT, fields=(("previous_response_id", first["id"]),))
    next_turn: Any = await caller.whole_json(follow, "previous_response_id")
    before, after = first["usage"]["input_tokens"], next_turn["usage"]["input_tokens"]
    must(after > before, "input_tokens of the next turn", f"more than {before}", after)


async def stored_is_deleted(caller: Caller) -> None:
    first = await _stored(caller)
    reply = await caller.endpoint.delete(_path(caller, first))
    if reply.status in (405, 501):
        raise Unserved(f"nothing can be deleted here: {reply.status}")
    must_equal("status of DELETE", 200, reply.status)
    gone = await caller.endpoint.get(_path(caller, first))
    must_equal("status of GET afterwards", 404, gone.status)
    caller.api.must_be_error(gone)


async def _stored(caller: Caller) -> Any:
    """Create a stored response and return it. Raises Unserved if the server keeps no responses."""
    response: Any = await caller.whole_json(_STORED, "store")
    reply = await caller.endpoint.get(_path(caller, response))
    if reply.status in (404, 405, 501):
        raise Unserved(f"nothing is stored here: {reply.status}")
    must_equal("status of GET", 200, reply.status)
    return response


def _path(caller: Caller, response: Any) -> str:
    return f"{caller.api.path}/{response['id']}"
