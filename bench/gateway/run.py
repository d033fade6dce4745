"""One run: simulated nodes, the gateway before them, a trace through it; and its figures."""

import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tasuki.bench.errors import BenchError
from tasuki.bench.fleet.nodes.node_model import NodeModel
from tasuki.bench.fleet.workload import Workload
from tasuki.bench.handover.process import Spawned, spawned
from tasuki.bench.load.cpu_by_role import sample
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.bench.replay.replay import tree_config
from tasuki.bench.replay.trace import Trace

from .gateway_process import BLOCKS, BY_CACHE_ALONE, SECONDS, GatewayProcess
from .player import Asked, Player
from .settings import GatewaySettings
from .simulated_nodes import NodesWanted, run_nodes
from .sleeping_engine import Arrival

_START_SECONDS = 600.0
_LOOK_SECONDS = 5.0
_FOLLOW_SECONDS = 0.5
"""Between two looks after a restart."""
_POLICY = "value"


@dataclass
class Look:
    """At the gateway. at: on the monotonic clock. cpu: seconds of all its threads until then."""

    at: float
    cpu: float
    memory: int
    blocks: int
    metrics: dict[str, float]


@dataclass
class Restart:
    """Times of the monotonic clock. blocks: in the index before; registered, known: all nodes, and
    as many blocks again; 0 where that was not seen. cpu: what the gateway took until known."""

    killed: float
    blocks: int
    registered: float = 0.0
    known: float = 0.0
    cpu: float = 0.0

    @property
    def over(self) -> bool:
        return bool(self.registered and self.known)


@dataclass
class Ran:
    """What was seen of a run. ready_seconds: from the gateway's start until all nodes were
    registered and subscribed to; ready_cpu, nodes_cpu: seconds of CPU that it and the nodes took
    for that."""

    began: float
    ready_seconds: float
    ready_cpu: float
    nodes_cpu: float
    asked: list[Asked]
    arrivals: list[Arrival]
    looks: list[Look]
    restart: Restart | None


def run(trace: Trace, settings: GatewaySettings, model: NodeModel, folder: Path) -> Ran:
    """trace, model: shortened. folder: for logs and the gateway's tokenizer. Raises BenchError."""
    _raise_file_limit()
    write_model_folder(folder / "model", free_shape(4))
    with ExitStack() as stack:
        processes = [
            stack.enter_context(spawned(f"nodes {number}", run_nodes, wanted))
            for number, wanted in enumerate(_wanted(settings, model, folder / "model"))
        ]
        addresses = [address for each in processes for address in each.received(_START_SECONDS)]
        _say(f"{len(addresses)} nodes stand")
        flags = () if settings.defaults else BY_CACHE_ALONE
        gateway = GatewayProcess(addresses, flags, folder / "smg.log")
        stack.callback(gateway.kill)
        before = _cpu_of(processes)
        started = gateway.start()
        gateway.wait_ready()
        ready = time.monotonic() - started
        ready_cpu, nodes_cpu = gateway.cpu_seconds(), _cpu_of(processes) - before
        _say(f"smg has registered them after {ready:.1f} s")
        workload = Workload(
            trace, settings.streams, "recorded", settings.token_seconds, settings.seed
        )
        watch = _Watch(gateway, settings)
        player = asyncio.run(watch.play(workload, settings.seconds))
        _say(f"{len(player.asked)} turns were asked")
        arrivals = [arrival for each in processes for arrival in _arrivals(each)]
        gateway.kill()
        for each in processes:
            each.channel.send(None)
    return Ran(
        player.began,
        ready,
        ready_cpu,
        nodes_cpu,
        player.asked,
        arrivals,
        watch.looks,
        watch.restart,
    )


class _Watch:
    """Looks at the gateway while it is played on, and restarts it. Thread rule: one event loop's;
    what waits for the gateway does so on threads."""

    def __init__(self, gateway: GatewayProcess, settings: GatewaySettings) -> None:
        self.looks: list[Look] = []
        self.restart: Restart | None = None
        self._gateway = gateway
        self._nodes = settings.nodes
        self._restart_after = settings.restart

    async def play(self, workload: Workload, seconds: float) -> Player:
        """All of it. The player, when it is through."""
        player = Player(self._gateway.address, workload, seconds)
        # Before anything is asked: what grows is counted from here.
        self.looks.append(await asyncio.to_thread(self._look))
        playing = asyncio.create_task(player.play())
        began = time.monotonic()
        while not playing.done():
            self.looks.append(await asyncio.to_thread(self._look))
            due = time.monotonic() - began >= self._restart_after
            if self._restart_after and due and self.restart is None:
                player.hold()
                self.restart = Restart(time.monotonic(), self.looks[-1].blocks)
                await asyncio.to_thread(self._gateway.kill)
                self._gateway.start()
            if self.restart is not None and not self.restart.over:
                await self._follow(self.restart, player)
            await asyncio.wait((playing,), timeout=_LOOK_SECONDS)
        await playing
        self.looks.append(await asyncio.to_thread(self._look))
        return player

    def _look(self) -> Look:
        metrics, cpu = self._gateway.metrics(), self._gateway.cpu()
        blocks = int(metrics.get(BLOCKS, 0))
        return Look(time.monotonic(), sum(cpu.processes.values()), cpu.memory, blocks, metrics)

    async def _follow(self, restart: Restart, player: Player) -> None:
        """Until its index holds what it held. Turns go on as soon as all nodes are registered, for
        whoever stands before it would ask whether it is ready. Raises BenchError."""
        gateway = self._gateway
        while not restart.over:
            if time.monotonic() - restart.killed > SECONDS:
                raise BenchError(f"smg does not come back: {gateway.last_words()}")
            if (
                not restart.registered
                and await asyncio.to_thread(gateway.registered) >= self._nodes
            ):
                restart.registered = time.monotonic()
                player.go_on()
                _say(f"registered again after {restart.registered - restart.killed:.1f} s")
            blocks = await asyncio.to_thread(gateway.blocks)
            if not restart.known and blocks >= restart.blocks:
                restart.known = time.monotonic()
                restart.cpu = gateway.cpu_seconds()
            await asyncio.sleep(_FOLLOW_SECONDS)


def _wanted(settings: GatewaySettings, model: NodeModel, folder: Path) -> list[NodesWanted]:
    config = tree_config(model.layout, model.flops, settings.gb, _POLICY)
    return [
        NodesWanted(
            numbers=tuple(range(first, settings.nodes, settings.processes)),
            folder=folder,
            slabs=config.slabs,
            blocks_per_slab=config.blocks_per_slab,
            pages_per_slab=config.pages_per_slab,
            attention_cost=config.attention_cost,
            seconds=model.seconds,
            token_seconds=settings.token_seconds,
        )
        for first in range(min(settings.processes, settings.nodes))
    ]


def _cpu_of(processes: Sequence[Spawned]) -> float:
    """Seconds until now."""
    return sum(sum(sample(each.pid).processes.values()) for each in processes)


def _arrivals(process: Spawned) -> list[Arrival]:
    process.channel.send("arrivals")
    found: list[Arrival] = process.received(_START_SECONDS)
    return found


def _raise_file_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _say(what: str) -> None:
    """How far a run is, which takes minutes."""
    print(what, file=sys.stderr, flush=True)
