"""What a node needs of its front workers: their registry, their processes, the sockets between."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasuki.engine.messages import RequestId
from tasuki.server.engine_client import EngineClient

from .node_sockets import NodeSockets
from .pool import WorkerPool
from .registry import Registry

Header = Callable[[RequestId], str]
WorkerGone = Callable[[int, Sequence[RequestId]], None]


@dataclass(frozen=True)
class NodeWorkers:
    """registry: builds it over the node's client of the engine; takes Tracing.header too.
    gone_from_engine: has it called for each worker whose link to the engine has ended."""

    sockets: NodeSockets
    pool: WorkerPool
    registry: Callable[[EngineClient, Header], Registry]
    gone_from_engine: Callable[[WorkerGone], None]
