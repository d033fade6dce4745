"""Tests of the ports in the network policy for access to nodes' memory: UCX uses exactly these
ports."""

import re
import subprocess
from pathlib import Path

from tests.harness.daemons import asked, random_prompt
from tests.harness.processes import free_port
from tests.harness.programs import program
from tests.harness.running_nodes import node_pair

PORTS = 100


def listening(pid: int) -> set[int]:
    """Return the listening ports of a process and its children."""
    ss = program("ss", "install Debian's iproute2")
    shown = subprocess.run([ss, "-Hltnp"], capture_output=True, text=True, check=True).stdout
    family = {pid, *children(pid)}
    return {
        int(line.split()[3].rpartition(":")[2])
        for line in shown.splitlines()
        if family & {int(owner) for owner in re.findall(r"pid=(\d+)", line)}
    }


def children(pid: int) -> set[int]:
    found = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found |= {child, *children(child)}
    return found


def test_ucx_listens_within_its_range_alone() -> None:
    first = free_port()
    span = range(first, first + PORTS)
    environment = {"UCX_TCP_PORT_RANGE": f"{span[0]}-{span[-1]}"}
    with node_pair(environment=environment) as (prefill, decode):
        asked(decode, random_prompt(200, 1), b"", 2).result()
        taken = listening(prefill.pid) - {int(prefill.address.rpartition(":")[2])}
        assert taken and taken <= {*span}, (taken, span)
