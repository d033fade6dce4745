"""Restarts nodes in turn behind a reverse proxy, under load: python -m scripts.rolling_restart
--proxy nginx

Two nodes run behind the proxy of deploy/proxies, with requests at a fixed pace. One node after the
other is stopped and started again. Requests continue until the last restart is over. Exit status 1
if an answer is lost or not whole.
"""

import asyncio
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scripts.common.command import seed_option, settings_of, show
from scripts.common.daemons import Daemons, ModuleDaemon
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.bench.load.serving_report import ServingReport
from tasuki.cli.launcher import Daemon
from tasuki.model.named_checkpoints import embedded_model
from tasuki.utils.options import option
from tasuki.utils.program import PACKAGE
from tests.harness.daemons import Node, kept_address
from tests.harness.http_calls import ask
from tests.harness.waiting import until

from .proxy import KINDS, ProxyError, running_proxy
from .requests import Load, Outcome, asked_at_a_pace

LAYERS = 4
_FREE_ARENA_MIB = 512
_EMBEDDED_ARENA_MIB = 256


@dataclass(frozen=True)
class Restart:
    """The times of one node's restart. ended_after: seconds from SIGTERM to the process's end.
    ready_after: seconds from SIGTERM until it is ready again."""

    node: int
    ended_after: float
    ready_after: float


class Nodes(Daemons):
    """Two nodes of the cost-free or of the embedded model. Each keeps its addresses over its
    restarts."""

    def __init__(self, folder: Path, model: str, grace: float, step_ms: float) -> None:
        """Start two nodes. model: free (without cost) or embedded. grace: value of the nodes'
        drain_grace. step_ms: duration of the cost-free model's forwards."""
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
        """Return HOST:PORT of each node's HTTP server."""
        return tuple(node.http_address for node in self._nodes)

    def restart(self, number: int) -> Restart:
        """Restart a node at its old addresses: SIGTERM, the grace time, the drain, and a new
        process. Blocks until the node is ready."""
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


_SHOWN = 20


@dataclass(frozen=True)
class Settings:
    proxy: str = option("nginx", "before the nodes", tuple(KINDS))
    model: str = option("free", "of the nodes", ("free", "embedded"))
    requests: int = option(2000, "at least")
    a_second: float = option(10.0, "requests a second")
    restarts: int = option(3, "of one node after the other")
    grace: float = option(5.0, "the nodes' drain_grace, in seconds")
    shortest: float = option(1.0, "seconds of an answer of the free model")
    longest: float = option(20.0, "seconds of an answer of the free model")
    step_ms: float = option(50.0, "of the free model's forwards: a token of each answer")
    tokens: int = option(24, "the most of an answer of the embedded model")
    pause: float = option(5.0, "seconds before each restart")
    seed: int | None = seed_option()
    out: str = option("", "write JSON here, and a table beside it")

    @property
    def load(self) -> Load:
        known = self.model == "free"
        least, most = (
            round(seconds * 1000 / self.step_ms) for seconds in (self.shortest, self.longest)
        )
        assert self.seed is not None
        return Load(
            self.requests,
            self.a_second,
            (least, most) if known else (1, self.tokens),
            2000 if known else 48,
            known,
            self.seed,
        )


@dataclass
class Run:
    outcome: Outcome = field(default_factory=Outcome)
    restarts: list[Restart] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.outcome.whole == self.outcome.sent > 0


def restarted_under_load(settings: Settings, folder: Path) -> Run:
    """Restart both nodes under load and return the run's results. Raises ProxyError."""
    with (
        Nodes(folder, settings.model, settings.grace, settings.step_ms) as nodes,
        running_proxy(settings.proxy, nodes.addresses, folder) as address,
    ):
        return asyncio.run(_run(settings, nodes, address))


async def _run(settings: Settings, nodes: Nodes, address: str) -> Run:
    run = Run()
    load = settings.load
    asking = asyncio.create_task(
        asked_at_a_pace(address, load, lambda: len(run.restarts) == settings.restarts)
    )
    for number in range(settings.restarts):
        await asyncio.sleep(settings.pause)
        restart = await asyncio.to_thread(nodes.restart, number % len(nodes.nodes))
        run.restarts.append(restart)
        show(
            f"node {restart.node} ended after {restart.ended_after:.1f} s and was ready after "
            f"{restart.ready_after:.1f} s"
        )
    run.outcome = await asking
    return run


def main() -> int:
    about = "Restart nodes in turn behind a reverse proxy."
    settings = settings_of("scripts.rolling_restart", about, Settings, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = restarted_under_load(settings, Path(folder))
        except ProxyError as error:
            print(error, file=sys.stderr)
            return 1
    for trouble in run.outcome.lost[:_SHOWN]:
        show(trouble)
    report = ServingReport(
        f"rolling restart behind {settings.proxy}, {settings.model} model",
        {"free_model": settings.model == "free", **asdict(settings)},
        _figures(run),
    )
    if settings.out:
        report.write(Path(settings.out))
    show(report.as_lines())
    return 0 if run.passed else 1


def _figures(run: Run) -> dict[str, Any]:
    outcome = run.outcome
    return {
        "requests": outcome.sent,
        "whole": outcome.whole,
        "lost": len(outcome.lost),
        "streams": outcome.streams,
        "most_at_once": outcome.most_at_once,
        "longest_answer_seconds": round(outcome.longest_seconds, 1),
        "restarts_under_load": len(run.restarts),
        "ended_after_seconds": [round(restart.ended_after, 1) for restart in run.restarts],
        "ready_after_seconds": [round(restart.ready_after, 1) for restart in run.restarts],
        "passed": run.passed,
    }


if __name__ == "__main__":
    sys.exit(main())
