"""Two by two nodes with etcd in network namespaces: one is killed, one drained, under load."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tasuki.transfer.transports.nixl.transport import installed_package

from tests.harness.namespaces import switched_hosts, why_not

ROOT = Path(__file__).parents[2]


def test_no_request_fails_when_a_node_is_killed_and_another_drained(tmp_path: Path) -> None:
    if installed_package() is None:
        pytest.skip("NIXL is not installed")
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: install Debian's etcd-server")
    with switched_hosts("four", 4) as spaces:
        command = [sys.executable, "-m", "tests.harness.four_hosts", str(tmp_path), *spaces]
        run = subprocess.run(
            ["ip", "netns", "exec", spaces[0], *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert run.returncode == 0, run.stdout + run.stderr
