"""Processes forked from one with torch and the daemons' modules imported. A child costs a fork
instead of seconds of processor time for the start of an interpreter.

The fork server starts at the first child and has no other thread. A child has the environment and
the folder of its starter. It has the fork server's namespaces, inherited from the process at its
first child.
"""

import multiprocessing as mp
import os
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess

_PRELOADED = [
    *("tasuki.prefill_node.node", "tasuki.decode_node.node"),
    *("tasuki.server.daemon.fused_node", "tasuki.engine.assembly.ranks"),
    *("tasuki.prefill_node.main", "tasuki.decode_node.main", "tasuki.server.daemon.fused"),
    *("tasuki.cli.main", "llguidance", "jinja2.ext", "pytest"),
    *("tests.harness.forked_daemon", "tests.harness.frozen_heap"),
]
"""Modules the fork server imports in advance; frozen_heap is the last. NIXL is left out, because it
reads its environment when it is loaded."""


def fork_context() -> ForkServerContext:
    """Return the multiprocessing context for processes of the fork server."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def forked(
    target: Callable[..., object], *arguments: object, environment: Mapping[str, str] | None = None
) -> BaseProcess:
    """Return a started process calling `target`. environment: variables different from this
    process's. REQUIRES: target and arguments can be pickled."""
    life = (os.getcwd(), {**os.environ, **(environment or {})}, target, arguments)
    # daemon: a process left behind by a test ends with the test's process, without a wait.
    process = fork_context().Process(target=_live, args=life, daemon=True)
    process.start()
    return process


def forked_peer(
    target: Callable[..., object], *arguments: object
) -> tuple[BaseProcess, Connection]:
    """Start a process calling `target` with its end of a pipe and the arguments. Returns the
    process and the other end."""
    ours, theirs = mp.Pipe()
    process = forked(target, theirs, *arguments)
    theirs.close()
    return process, ours


def _live(
    folder: str,
    environment: dict[str, str],
    target: Callable[..., object],
    arguments: tuple[object, ...],
) -> None:
    """Run a forked child from start to end."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # It may have children of its own, as any process.
    mp.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    target(*arguments)
