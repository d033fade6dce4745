"""The objects that a node has once and all of its front workers ask for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tasuki.engine import messages as m
from tasuki.server.engine_client import EngineClient
from tasuki.server.responses.stored_responses import ResponseStore
from tasuki.server.sessions.turns import Sessions


@dataclass(frozen=True)
class NodeState:
    """header: returns a request's traceparent, as Tracing.header. owners: the seat of each request
    in flight that was let in for a worker."""

    engine: EngineClient
    header: Callable[[m.RequestId], str]
    sessions: Sessions
    responses: ResponseStore
    owners: dict[m.RequestId, Any] = field(default_factory=dict)
