"""A hand-over between two network namespaces, and a link between them that breaks."""

import subprocess
import sys
from pathlib import Path

import pytest
from tasuki.transfer.transports.nixl.transport import installed_package

from tests.harness.namespaces import two_hosts, why_not

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", autouse=True)
def able() -> None:
    if installed_package() is None:
        pytest.skip("NIXL is not installed")
    if (reason := why_not()) is not None:
        pytest.skip(reason)


def play(scenario: str) -> None:
    with two_hosts("test") as (prefill, decode):
        command = [sys.executable, "-m", "tests.harness.two_hosts", prefill, decode, scenario]
        run = subprocess.run(
            ["ip", "netns", "exec", decode, *command],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_prefix_is_handed_from_one_host_to_another() -> None:
    play("works")


def test_a_link_that_breaks_in_mid_transfer_costs_time_only() -> None:
    play("link_goes_down_and_up")
