"""The list of models."""

from typing import Any

from tasuki.cli.conformance.apis.openai import must_be_openai_error
from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.endpoint import Endpoint
from tasuki.cli.conformance.outcome import Unserved, must, must_equal
from tasuki.cli.conformance.shape import NUMBER, must_have

PATH = "/v1/models"
_MODEL = {"id": str, "object": {"model"}, "created": NUMBER, "owned_by": str}


async def listed_models(endpoint: Endpoint) -> list[dict[str, Any]]:
    """Raises Unserved without a list, Departure for a malformed one."""
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
