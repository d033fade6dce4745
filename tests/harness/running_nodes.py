"""Helpers running daemons until a block ends. Each must end with status 0."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from tasuki.client.errors import LaunchError
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.harness.daemons import Node, flags, meet
from tests.harness.forked_daemon import ForkedDaemon

HTTP = ("--http-bind", "127.0.0.1:0")
CHUNKS = ("--prefill-chunk-tokens", "64")
NO_NIXL = "NIXL is not installed"

needs_nixl = pytest.mark.skipif(installed_package() is None, reason=NO_NIXL)


def require_nixl() -> None:
    """Skip a fixture's tests if NIXL is missing, because two nodes then cannot transfer."""
    if installed_package() is None:
        pytest.skip(NO_NIXL)


@contextmanager
def running(node: Node) -> Iterator[Node]:
    try:
        yield node.wait_ready()
    finally:
        status = node.stop()
        assert status == 0, (status, node.last_words)


@contextmanager
def fused_node(*more: str, arena_mib: int = 96) -> Iterator[Node]:
    """Yield a running `tasuki serve` with the embedded model. more: further flags."""
    with running(Node("serve", *flags(arena_mib=arena_mib), *more)) as node:
        yield node


@contextmanager
def node_pair(
    *shared: str,
    prefill: Sequence[str] = (),
    decode: Sequence[str] = (),
    arena_mib: int = 96,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[Node, Node]]:
    """Yield a connected prefill and decode node. shared: flags of both. prefill, decode: flags of
    one. environment: the prefill node's variables different from this process's."""
    require_nixl()
    common = (*flags(arena_mib=arena_mib), *shared)
    with ExitStack() as stack:
        launch = partial(ForkedDaemon, environment=environment)
        first = stack.enter_context(running(Node("prefill", *common, *prefill, launch=launch)))
        known = ("--prefill", first.handover_address)
        second = stack.enter_context(running(Node("decode", *common, *known, *decode)))
        meet(second)
        yield first, second


def refused_start(command: str, *more: str, bind: str = "127.0.0.1:0") -> tuple[str, ...]:
    """Start a daemon with flags it must reject, and return the last lines it wrote. more: flags."""
    daemon = ForkedDaemon(command, more, bind)
    try:
        with pytest.raises(LaunchError, match="ended with status 1"):
            daemon.wait_ready()
    finally:
        assert daemon.stop() == 1
    assert "Traceback" not in "\n".join(daemon.last_words)
    return daemon.last_words
