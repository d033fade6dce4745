"""A node that serves no gateway needs nothing of the gateway's protocol."""

import subprocess
import sys

BLOCKED = """
import sys
sys.modules["smg_grpc_proto"] = None
import tasuki.server.daemon.fused, tasuki.prefill_node.main, tasuki.decode_node.main
import tasuki.prefill_node.node, tasuki.decode_node.node
"""


def test_every_daemon_starts_without_the_gateways_package() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
