"""A conformance check, and the caller for sending its requests.

The caller sends requests to one API of one endpoint. It distinguishes an unsupported feature from a
fault.

Used on one event loop's thread, with one request at a time.

A check has a name, and returns its row of the table after running.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from .api import Answer, Api, Question
from .endpoint import Endpoint, EndpointError, Event, Reply
from .outcome import Departure, Outcome, Row, Unserved, shown

_REFUSALS = (400, 404, 405, 422, 501)


def names(words: str, field: str) -> bool:
    """Return True if `words`, the text of a refusal, contain the field's name as a separate
    word."""
    return re.search(rf"(?<!\w){re.escape(field)}(?!\w)", words) is not None


@dataclass(frozen=True)
class Caller:
    """A client of one API of one endpoint. model: the model named in every request."""

    endpoint: Endpoint
    api: Api
    model: str

    async def whole(self, question: Question, *features: str) -> Answer:
        """Ask the question and return the whole (not streamed) answer. features: request fields the
        server may refuse by name; then Unserved is raised. Raises Departure if the reply is not one
        of the API's."""
        return self.api.whole(await self.whole_json(question, *features))

    async def whole_json(self, question: Question, *features: str) -> dict[str, object]:
        body = self.api.body(self.model, question)
        reply = await self._answered(body, features)
        found = reply.json
        if not isinstance(found, dict):
            raise Departure("the body", "an object", found)
        return found

    async def streamed(self, question: Question, *features: str) -> Answer:
        """Ask the question and return the streamed answer. features and errors are those of
        whole()."""
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
    """One conformance check. name: the checked rule, as shown in the table."""

    name: str
    run: Run

    async def row(self, api: str, caller: Caller) -> Row:
        """Run the check and return its row of the table. api: the API's name, shown in the row."""
        try:
            await self.run(caller)
        except (Departure, EndpointError) as departure:
            return Row(api, self.name, Outcome.FAILED, str(departure))
        except Unserved as unserved:
            return Row(api, self.name, Outcome.SKIPPED, str(unserved))
        except (LookupError, TypeError, AttributeError) as error:
            # A reply is read in its API's form: these errors show another form.
            note = f"the reply cannot be read: {type(error).__name__} {error}"
            return Row(api, self.name, Outcome.FAILED, note)
        return Row(api, self.name, Outcome.PASSED)
