"""A check, and the caller that it asks with.

Asks one API of one endpoint, and knows a feature that is refused from a fault.

One event loop's thread; one request at a time.

A check by its name, and its row once it was run.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from .api import Answer, Api, Question
from .endpoint import Endpoint, EndpointError, Event, Reply
from .outcome import Departure, Outcome, Row, Unserved, shown

_REFUSALS = (400, 404, 405, 422, 501)


def names(words: str, field: str) -> bool:
    """Whether a refusal's words hold a field's name, as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(field)}(?!\w)", words) is not None


@dataclass(frozen=True)
class Caller:
    """model: that every request names."""

    endpoint: Endpoint
    api: Api
    model: str

    async def whole(self, question: Question, *features: str) -> Answer:
        """features: fields of the request that a server may refuse by their names; Unserved then.
        Raises Departure where the reply is none of the API's."""
        return self.api.whole(await self.whole_json(question, *features))

    async def whole_json(self, question: Question, *features: str) -> dict[str, object]:
        body = self.api.body(self.model, question)
        reply = await self._answered(body, features)
        found = reply.json
        if not isinstance(found, dict):
            raise Departure("the body", "an object", found)
        return found

    async def streamed(self, question: Question, *features: str) -> Answer:
        """As whole."""
        return self.api.followed(await self.events(question, *features))

    async def events(self, question: Question, *features: str) -> list[Event]:
        body = self.api.stream_body(self.model, question)
        return (await self._answered(body, (*features, "stream"))).events

    async def _answered(self, body: dict[str, object], features: Sequence[str]) -> Reply:
        reply = await self.endpoint.post(self.api.path, body)
        if reply.status == 200:
            return reply
        words = reply.body.decode(errors="replace")
        if reply.status in _REFUSALS and any(names(words, feature) for feature in features):
            raise Unserved(f"refused: {reply.status} {shown(words)}")
        raise Departure("status", 200, f"{reply.status} {shown(words)}")


Run = Callable[[Caller], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """name: the rule, as the table shows it."""

    name: str
    run: Run

    async def row(self, api: str, caller: Caller) -> Row:
        """api: that the row names."""
        try:
            await self.run(caller)
        except (Departure, EndpointError) as departure:
            return Row(api, self.name, Outcome.FAILED, str(departure))
        except Unserved as unserved:
            return Row(api, self.name, Outcome.SKIPPED, str(unserved))
        except (LookupError, TypeError, AttributeError) as error:
            # Replies are read as their APIs have them: what has no such place is another shape.
            note = f"the reply cannot be read: {type(error).__name__} {error}"
            return Row(api, self.name, Outcome.FAILED, note)
        return Row(api, self.name, Outcome.PASSED)
