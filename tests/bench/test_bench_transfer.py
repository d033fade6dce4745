"""Tests of `tasuki bench transfer` without a GPU: its parts, and its reading of UCX's output."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.bench.handover.goodput import put_protocols
from tasuki.bench.handover.prefill import ThrottledTransport
from tasuki.cli import main as cli
from tasuki.transfer.transports.base import TransferState
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport

LOG = """
[1.2] [vm:1 :0] +-------+--------+-------------+------------+
[1.2] [vm:1 :0] | s-1 intra-node cfg#1                      |
[1.2] [vm:1 :0] | active message by ucp_am_send*(egr) from host memory |
[1.2] [vm:1 :0] | Count | Range  | Description | Config     |
[1.2] [vm:1 :0] |     2 | 0..inf | copy-in     | tcp/lo     |
[1.2] [vm:1 :0] | remote memory write by ucp_put*(multi) from host memory to host |
[1.2] [vm:1 :0] | Count | Range  | Description | Config     |
[1.2] [vm:1 :0] |     0 | 0..64  | short       | sysv/memory |
[1.2] [vm:1 :0] |    12 | 65..inf | zero-copy  | cma/memory |
"""


def row_of(part: str, out: Path) -> dict[str, Any]:
    flags = ["--device", "cpu", "--dtype", "float32", "--parts", part, "--out", str(out)]
    assert cli.main(["bench", "transfer", *flags]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    found: dict[str, Any] = row
    return found


def test_a_request_takes_two_control_round_trips(tmp_path: Path) -> None:
    row = row_of("control", tmp_path / "out.json")
    assert row["extra"]["round trips"] == 2
    assert row["met"] is True


def test_a_wire_of_fewer_bytes_is_timed_beside_the_exact_one(tmp_path: Path) -> None:
    """Compare the bytes. The machine decides the faster of the two wires, but not their bytes."""
    row = row_of("wire", tmp_path / "out.json")
    assert row["extra"]["MB"] < 0.45 * row["extra"]["exact MB"]
    assert row["seconds"] >= row["floor"] > 0


def test_only_protocols_that_carried_puts_are_named() -> None:
    assert put_protocols(LOG) == "zero-copy cma/memory"
    assert put_protocols("") == "unknown"


def test_a_throttled_transfer_is_done_when_its_link_would_be() -> None:
    fabric = LoopbackFabric()
    source, target = np.ones(4096, dtype=np.uint8), np.zeros(4096, dtype=np.uint8)
    sender = ThrottledTransport(LoopbackTransport(fabric, "source"), bytes_per_second=40_960.0)
    sender.register(source.ctypes.data, 4096)
    receiver = LoopbackTransport(fabric, "target")
    receiver.register(target.ctypes.data, 4096)
    endpoint = sender.connect(receiver.metadata())
    start = time.monotonic()
    posted = [sender.post(endpoint, np.array([[0, 0, 2048]]), b"") for _ in range(2)]
    done = []
    for transfer in posted:
        while sender.poll(transfer) is TransferState.PENDING:
            time.sleep(0.001)
        done.append(time.monotonic() - start)
        sender.release(transfer)
    assert done[0] >= 0.05 and done[1] >= 0.1


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="two GPUs are here")
def test_two_gpus_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "transfer"]) == 1
    assert "needs two of them" in capsys.readouterr().err
