"""Simulated nodes of one process: each the real service of the gateway's protocol on a port of its
own, over an engine that sleeps.

What goes over the process's pipe: the addresses; then, each time that it is sent anything but None,
what arrived since; it ends when it is sent None.
"""

import asyncio
import os
import resource
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from smg_grpc_proto.generated import tokenspeed_scheduler_pb2_grpc as pb_grpc

from tasuki.bench.load.free.tokens import VOCABULARY
from tasuki.pycache._cpp_cache import PrefixCache, TreeConfig
from tasuki.routing.node_load import PrefillSeconds
from tasuki.server.engine_client import EngineClient
from tasuki.server.grpc.server import Server, Service, start_server
from tasuki.server.smg.gateway_model import GatewayModel
from tasuki.server.smg.service import SERVICE, GatewayService

from .sleeping_engine import Arrival, SleepingEngine

MODEL = "simulated"
_MOST_TOKENS = 1 << 20
_MAX_BATCH = 64
_NICENESS = 10


@dataclass(frozen=True)
class NodesWanted:
    """numbers: of these nodes. folder: with the gateway's tokenizer. slabs, blocks, pages: of each
    tree, as TreeConfig has them. niceness: added to the process's."""

    numbers: tuple[int, ...]
    folder: Path
    slabs: int
    blocks_per_slab: int
    pages_per_slab: int
    attention_cost: float
    seconds: PrefillSeconds
    token_seconds: float

    def tree(self) -> PrefixCache:
        return PrefixCache(
            TreeConfig(
                slabs=self.slabs,
                blocks_per_slab=self.blocks_per_slab,
                pages_per_slab=self.pages_per_slab,
                max_ghost_nodes=4096,
                policy="value",
                attention_cost=self.attention_cost,
            )
        )


class _Node:
    def __init__(self, number: int, wanted: NodesWanted) -> None:
        self.engine = SleepingEngine(
            number,
            wanted.tree(),
            wanted.seconds,
            wanted.token_seconds,
            VOCABULARY,
            lambda messages: client.take(messages),
        )
        client = EngineClient(self.engine.post, asyncio.get_running_loop())
        model = GatewayModel(
            folder=wanted.folder,
            name=MODEL,
            model_type="qwen3_5_text",
            architectures=("Qwen3_5ForCausalLM",),
            dtype="bfloat16",
            vocab_size=VOCABULARY,
            max_tokens=_MOST_TOKENS,
            eos_ids=(0,),
        )
        self._service = GatewayService(client, client, model, None, _MAX_BATCH)

    async def start(self) -> Server:
        add = partial(pb_grpc.add_TokenSpeedSchedulerServicer_to_server, self._service)
        return await start_server("127.0.0.1:0", (Service(SERVICE, add),))


def run_nodes(channel: Connection, wanted: NodesWanted) -> None:
    """The process's main. It gives way to the gateway, which has a machine of its own elsewhere."""
    os.nice(_NICENESS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(_run(channel, wanted))


async def _run(channel: Connection, wanted: NodesWanted) -> None:
    nodes = [_Node(number, wanted) for number in wanted.numbers]
    servers = [await node.start() for node in nodes]
    channel.send([server.address for server in servers])
    while await asyncio.to_thread(channel.recv) is not None:
        channel.send(_arrivals(nodes))
    await asyncio.gather(*(server.drain(0.0) for server in servers))


def _arrivals(nodes: list[_Node]) -> list[Arrival]:
    found = [arrival for node in nodes for arrival in node.engine.arrivals]
    for node in nodes:
        node.engine.arrivals.clear()
    return found
