"""A prefill node and a decode node over random weights: the prefill node in a separate process, the
decode node here.

Both are built like in `tasuki prefill` and `tasuki decode`, except for weights and tokenizer. There
are no clients: requests enter at the API server's interface.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection

import numpy as np
import torch

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.rank_parts import rank_parts
from tasuki.bench.measure.rig import random_parts
from tasuki.decode_node.config import DecodeConfig
from tasuki.decode_node.node import DecodeNode
from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts, use_device
from tasuki.engine.config import EngineConfig, Role
from tasuki.model.config import ModelConfig
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.prefill_node.config import PrefillConfig
from tasuki.prefill_node.node import PrefillNode
from tasuki.server.config import ServerConfig
from tasuki.server.text.text_codec import TextCodec
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.transports.factory import build_transport

from .process import spawned

_START_SECONDS = 300.0
_WEIGHTS = "random"
_FRONT = ServerConfig(bind="127.0.0.1:0")


@dataclass(frozen=True)
class FirstToken:
    """The start of one answer. seconds: time from the request's start to its first token, as seen
    by an API server."""

    seconds: float
    usage: m.Usage


def run_prefill_node(
    channel: Connection, model: ModelConfig, config: EngineConfig, kind: str
) -> None:
    """Run the prefill node's process: send its address over `channel`, and run until any message
    arrives."""
    parts, plane = _built(model, config, kind, Role.PREFILL)

    async def serve() -> None:
        node = PrefillNode(config, _FRONT, PrefillConfig(transport=kind), parts, plane)
        channel.send(await node.startup())
        await asyncio.to_thread(channel.recv)
        await node.shutdown()
        _close(parts, plane)

    asyncio.run(serve())


def _built(
    model: ModelConfig, config: EngineConfig, kind: str, role: Role
) -> tuple[EngineParts, DataPlane]:
    """Build the parts and the data plane of a node with the config's number of ranks."""
    torch.set_num_threads(config.threads)
    name = f"bench-{role.value}"
    several = config.tensor_parallel > 1
    parts = rank_parts(config, role) if several else random_parts(model, config)
    transport = build_transport(kind, name, parts.arena.bytes.device)
    if parts.shared is None:
        memory = parts.arena.bytes
        return parts, DataPlane.over(memory, parts.layout, _WEIGHTS, transport, kind, name)
    shared = parts.shared
    return parts, DataPlane.of_ranks(shared.region, shared.spans, _WEIGHTS, transport, kind, name)


def _close(parts: EngineParts, plane: DataPlane) -> None:
    plane.transport.close()
    if parts.ranks is not None:
        parts.ranks.close()


class NodePair:
    """A decode node connected to a prefill node in another process."""

    def __init__(self, node: DecodeNode, vocab: int) -> None:
        self._node = node
        self._vocab = vocab
        self._names = count(1)
        self._generator = np.random.default_rng(5)

    def prompt(self, tokens: int) -> list[int]:
        drawn: list[int] = self._generator.integers(0, self._vocab, tokens).tolist()
        return drawn

    def prefill_here(self) -> None:
        """Prefill on this decode node from the next request on, as if no prefill node were
        connected."""
        self._node.near.post_observed(m.PeersChanged(prefill_available=False))

    def prefill_there(self) -> None:
        self._node.near.post_observed(m.PeersChanged(prefill_available=True))

    async def ask(self, prompt: Sequence[int], new_tokens: int = 2) -> FirstToken:
        """Submit a prompt, and return the seconds to its first token and its usage. Raises
        BenchError if the answer has no token."""
        sampling = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
        ids = np.asarray(prompt, dtype=np.int32)
        submit = m.Submit(m.RequestId(f"bench-{next(self._names)}"), ids, sampling)
        start = time.perf_counter()
        seconds = None
        async for part in self._node.front.engine.generate(submit):
            if seconds is None:
                seconds = time.perf_counter() - start
            elif isinstance(part, m.Finished):
                return FirstToken(seconds, part.usage)
        raise BenchError("an answer ended without a token")


@asynccontextmanager
async def node_pair(
    model: ModelConfig, prefill: EngineConfig, decode: EngineConfig, kind: str
) -> AsyncIterator[NodePair]:
    """Run a connected prefill and decode node until the block ends. kind: name of the transport."""
    with spawned("the prefill node", run_prefill_node, model, prefill, kind) as process:
        parts, plane = _built(model, decode, kind, Role.DECODE)
        address = await asyncio.to_thread(process.received, _START_SECONDS)
        use_device(parts.arena.bytes.device)
        node = DecodeNode(
            decode,
            _FRONT,
            DecodeConfig(prefill=address, transport=kind),
            parts,
            plane,
            TextCodec(model.vocab, model.max_position, None, None),
        )
        await node.startup()
        try:
            yield NodePair(node, model.vocab)
        finally:
            await node.shutdown()
            _close(parts, plane)
        process.channel.send("stop")
