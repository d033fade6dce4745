"""Tests of a node without a gateway: it needs no package of the gateway's protocol."""

import sys

from tests.harness.programs import output_of

BLOCKED = """
import sys
sys.modules["smg_grpc_proto"] = None
import tasuki.server.daemon.fused, tasuki.prefill_node.main, tasuki.decode_node.main
import tasuki.prefill_node.node, tasuki.decode_node.node
"""


def test_every_daemon_starts_without_the_gateways_package() -> None:
    output_of([sys.executable, "-c", BLOCKED])
