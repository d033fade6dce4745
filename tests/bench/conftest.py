"""Fixtures of the benches' tests."""

import subprocess
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pytest

from tasuki.bench.handover import process as client_process
from tasuki.bench.load import node_main, node_process
from tests.harness.fork_server import fork_context
from tests.harness.forked_daemon import ForkedProgram


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork nodes and client processes; otherwise each would start an interpreter."""
    nodes: list[ForkedProgram] = []

    def node(command: Sequence[str], **_: object) -> ForkedProgram:
        words = [word for word in command if word != "--exit-with-parent"]
        nodes.append(ForkedProgram(node_main.main, words[words.index("-m") + 2 :]))
        return nodes[-1]

    programs = SimpleNamespace(
        Popen=node, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(node_process, "subprocess", programs)
    contexts = SimpleNamespace(get_context=lambda _: fork_context())
    monkeypatch.setattr(client_process, "mp", contexts)
    yield
    for started in nodes:
        started.stderr.close()
