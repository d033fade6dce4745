"""Where a request's answer comes from: this node's engine, or what a role puts in its place."""

from collections.abc import AsyncGenerator
from typing import Protocol

from ..engine.messages import Finished, RequestId, Submit, TokenOut
from .caller import Caller
from .origin import Origin


class Answers(Protocol):
    """As EngineClient: tokens in order, then Finished; closing the iterator aborts."""

    def generate(
        self, submit: Submit, origin: Origin
    ) -> AsyncGenerator[TokenOut | Finished, None]: ...
    def abort(self, request_id: RequestId, caller: Caller) -> None: ...
