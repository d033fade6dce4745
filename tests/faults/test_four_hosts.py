"""Two by two nodes with etcd in network namespaces: one is killed, one drained, under load."""

from pathlib import Path

import pytest

from tests.harness.namespaces import switched_hosts
from tests.harness.programs import program, require_namespaces, run_in
from tests.harness.running_nodes import require_nixl


@pytest.mark.slow
def test_no_request_fails_when_a_node_is_killed_and_another_drained(tmp_path: Path) -> None:
    require_nixl()
    require_namespaces()
    program("etcd", "install Debian's etcd-server")
    with switched_hosts("four", 4) as spaces:
        run_in(spaces[0], "tests.harness.four_hosts", str(tmp_path), *spaces)
