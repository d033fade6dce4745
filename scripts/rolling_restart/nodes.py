"""Two nodes that are restarted in turn: of the free model, or of the embedded one.

Owns their processes. Each keeps its addresses over its lives.
"""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.common.daemons import Daemons, ModuleDaemon
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.cli.launcher import Daemon
from tasuki.model.named_checkpoints import embedded_model
from tasuki.utils.program import PACKAGE
from tests.harness.daemons import Node, kept_address
from tests.harness.http_calls import ask
from tests.harness.waiting import until

LAYERS = 4
_FREE_ARENA_MIB = 512
_EMBEDDED_ARENA_MIB = 256


@dataclass(frozen=True)
class Restart:
    """ended_after, ready_after: seconds from SIGTERM on."""

    node: int
    ended_after: float
    ready_after: float


class Nodes(Daemons):
    def __init__(self, folder: Path, model: str, grace: float, step_ms: float) -> None:
        """model: free or embedded. grace: the nodes' drain_grace. step_ms: of the free model's
        forwards."""
        program = (f"{PACKAGE}.bench.load.node_main",)
        forwards = ("--weights", "free", "--step-ms", f"{step_ms:g}", "--")
        free = partial(ModuleDaemon, program, between=forwards)
        launch = free if model == "free" else Daemon
        shared = ("--device", "cpu", "--dtype", "float32", "--drain-grace", f"{grace:g}")
        own = _free_flags(folder) if model == "free" else _embedded_flags()
        self._nodes = tuple(
            Node(
                *("serve", *shared, *own, "--http-bind", kept_address()),
                bind=kept_address(),
                launch=launch,
            )
            for _ in range(2)
        )
        for node in self._nodes:
            node.wait_ready()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT of HTTP."""
        return tuple(node.http_address for node in self._nodes)

    def restart(self, number: int) -> Restart:
        """SIGTERM, the grace, the drain, and a new life at the old addresses. Blocks."""
        node = self._nodes[number]
        address = node.http_address
        began = time.monotonic()
        status = node.stop()
        assert status == 0, (status, node.last_words)
        ended = time.monotonic()
        node.start_again()
        until(lambda: ask(address, "GET", "/ready").status == 200, "it is not ready")
        return Restart(number, ended - began, time.monotonic() - began)


def _free_flags(folder: Path) -> tuple[str, ...]:
    model = folder / "model"
    if not model.exists():
        write_model_folder(model, free_shape(LAYERS))
    return (
        *("--model", str(model), "--max-batch", "512", "--draft-layer", "off"),
        *("--arena-mib", str(_FREE_ARENA_MIB), "--max-connections", "2048"),
    )


def _embedded_flags() -> tuple[str, ...]:
    return ("--model", str(embedded_model()), "--arena-mib", str(_EMBEDDED_ARENA_MIB))
