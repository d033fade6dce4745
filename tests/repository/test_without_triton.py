"""A CPU's node needs no Triton: no process of it imports what is only in an extra."""

import subprocess
import sys

import pytest

BLOCKED = """
import importlib, sys
sys.modules["triton"] = None
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize(
    "module",
    [
        "tasuki.cli.generate",
        "tasuki.server.daemon.fused",
        "tasuki.prefill_node.main",
        "tasuki.decode_node.main",
    ],
)
def test_a_node_is_imported_where_triton_is_not_installed(module: str) -> None:
    command = [sys.executable, "-c", BLOCKED, module]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
