"""Refusals: their status and their shape."""

from tasuki.cli.conformance.apis.api import Api
from tasuki.cli.conformance.apis.bad_request import BadRequest
from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.check import Check
from tasuki.cli.conformance.outcome import must


def refusals(api: Api) -> list[Check]:
    """One of each kind of bad request."""
    return [_refusal(number, bad) for number, bad in enumerate(api.bad_requests("model"))]


def _refusal(number: int, bad: BadRequest) -> Check:
    async def run(caller: Caller) -> None:
        body = caller.api.bad_requests(caller.model)[number].body
        reply = await caller.endpoint.post_bytes(caller.api.path, body)
        expected = " or ".join(map(str, sorted(bad.statuses)))
        must(reply.status in bad.statuses, "status", expected, reply.status)
        caller.api.must_be_error(reply)

    return Check(f"{bad.what}: a refusal of the API's shape", run)
