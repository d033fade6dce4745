"""Nodes on separate hosts (network namespaces): a hand-over over a broken link, and two by two
nodes with etcd under load."""

from pathlib import Path

import pytest

from tests.harness.namespaces import switched_hosts, two_hosts
from tests.harness.programs import program, require_namespaces, run_in
from tests.harness.running_nodes import require_nixl


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    require_nixl()
    require_namespaces()


@pytest.mark.parametrize(
    "scenario",
    ["works", pytest.param("link_goes_down_and_up", marks=pytest.mark.slow)],
)
def test_a_prefix_is_handed_from_one_host_to_another(scenario: str) -> None:
    """A link that fails during a transfer costs time only."""
    with two_hosts("test") as (prefill, decode):
        run_in(decode, "tests.harness.two_hosts", prefill, decode, scenario)


@pytest.mark.slow
def test_no_request_fails_when_a_node_is_killed_and_another_drained(tmp_path: Path) -> None:
    program("etcd", "install Debian's etcd-server")
    with switched_hosts("four", 4) as spaces:
        run_in(spaces[0], "tests.harness.four_hosts", str(tmp_path), *spaces)
