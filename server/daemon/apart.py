"""The life of a front whose engine is a process of its own: startup, main loop, drain."""

from tasuki.server.config import ServerConfig
from tasuki.server.role_change import RoleChange

from .engine_process import EngineProcess, EngineProcessError
from .lifecycle import StopRequest
from .node import Node
from .start.banner import announce_ready, spare_collections


async def serve_apart(
    engine: EngineProcess,
    node: Node,
    server_config: ServerConfig,
    role_change: RoleChange | None = None,
) -> None:
    """role_change: offered once the node stands. REQUIRES: engine.stands() has returned; the node
    is attached to it. Raises EngineProcessError where the engine's process has ended unasked, once
    all clients have their error."""
    async with StopRequest(
        exit_with_parent=server_config.exit_with_parent, hurry=node.hurry
    ) as stop:
        engine.on_loss(stop.ask)
        address = await node.startup()
        if role_change is not None:
            role_change.offer(address, node.http_address, stop.ask)
        spare_collections()
        announce_ready(address, node.http_address, (await engine.stands()).handover_address)
        await stop.wait()
        await engine.retire_handover()
        await node.refuse_and_drain()
        await engine.end_handover()
        await node.stop()
    if engine.reason is not None:
        raise EngineProcessError(engine.reason)
