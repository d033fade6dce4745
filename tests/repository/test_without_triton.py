"""Tests of a CPU node without Triton: none of its processes imports packages found only in an
extra."""

import subprocess
import sys

BLOCKED = """
import importlib, sys
sys.modules["triton"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
NODES = (
    "tasuki.cli.generate",
    "tasuki.server.daemon.fused",
    "tasuki.prefill_node.main",
    "tasuki.decode_node.main",
)


def test_nodes_are_imported_where_triton_is_not_installed() -> None:
    command = [sys.executable, "-c", BLOCKED, *NODES]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
