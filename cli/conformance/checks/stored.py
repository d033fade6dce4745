"""Stored responses: asked for again, gone on from, deleted."""

from dataclasses import replace
from typing import Any

from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import Unserved, must, must_equal

from .answers import TEXT

_STORED = replace(TEXT, fields=(("store", True),))
_SAME = ("id", "status", "output", "usage", "model", "created_at")


async def retrieved(caller: Caller) -> None:
    first = await _stored(caller)
    again = (await caller.endpoint.get(_path(caller, first))).json
    for name in _SAME:
        must_equal(name, first[name], again.get(name))


async def gone_on_from(caller: Caller) -> None:
    first = await _stored(caller)
    follow = replace(TEXT, fields=(("previous_response_id", first["id"]),))
    next_turn: Any = await caller.whole_json(follow, "previous_response_id")
    before, after = first["usage"]["input_tokens"], next_turn["usage"]["input_tokens"]
    must(after > before, "input_tokens of the next turn", f"more than {before}", after)


async def deleted(caller: Caller) -> None:
    first = await _stored(caller)
    reply = await caller.endpoint.delete(_path(caller, first))
    if reply.status in (405, 501):
        raise Unserved(f"nothing can be deleted here: {reply.status}")
    must_equal("status of DELETE", 200, reply.status)
    gone = await caller.endpoint.get(_path(caller, first))
    must_equal("status of GET afterwards", 404, gone.status)
    caller.api.must_be_error(gone)


async def _stored(caller: Caller) -> Any:
    """Raises Unserved where responses are not kept."""
    response: Any = await caller.whole_json(_STORED, "store")
    reply = await caller.endpoint.get(_path(caller, response))
    if reply.status in (404, 405, 501):
        raise Unserved(f"nothing is stored here: {reply.status}")
    must_equal("status of GET", 200, reply.status)
    return response


def _path(caller: Caller, response: Any) -> str:
    return f"{caller.api.path}/{response['id']}"
