"""A hand-over between two network namespaces, and a link between them that breaks."""

import pytest

from tests.harness.namespaces import two_hosts
from tests.harness.programs import require_namespaces, run_in
from tests.harness.running_nodes import require_nixl


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    require_nixl()
    require_namespaces()


def play(scenario: str) -> None:
    with two_hosts("test") as (prefill, decode):
        run_in(decode, "tests.harness.two_hosts", prefill, decode, scenario)


def test_a_prefix_is_handed_from_one_host_to_another() -> None:
    play("works")


@pytest.mark.slow
def test_a_link_that_breaks_in_mid_transfer_costs_time_only() -> None:
    play("link_goes_down_and_up")
