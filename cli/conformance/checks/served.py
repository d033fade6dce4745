"""Whether an API is there at all."""

from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import Departure, Unserved, shown
from tasuki.cli.conformance.question import Question

_HELLO = Question("Hello.", bound=16)


async def served(caller: Caller) -> None:
    """Raises Unserved for an unknown path, Departure for an unknown model."""
    api = caller.api
    reply = await caller.endpoint.post(api.path, api.body(caller.model, _HELLO))
    words = reply.body.decode(errors="replace")
    if reply.status == 404 and caller.model in words:
        raise Departure("status", 200, f"404 {shown(words)}: give --model NAME")
    if reply.status in (404, 405, 501):
        raise Unserved(f"no {api.path} here: {reply.status}")
