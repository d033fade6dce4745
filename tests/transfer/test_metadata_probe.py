"""The process that tries metadata first: its cost, its end, and the metadata it rejects."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasuki.transfer.errors import MetadataUnusable
from tasuki.transfer.transports.nixl.peer_metadata import MetadataProbe, NixlAddress, ProbeLimits
from tasuki.transfer.transports.nixl.transport import NixlTransport, installed_package
from tests.harness.waiting import until

pytestmark = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")


@pytest.fixture(scope="module")
def address() -> Iterator[NixlAddress]:
    memory = np.zeros(1 << 20, dtype=np.uint8)
    transport = NixlTransport("honest")
    transport.register(memory.ctypes.data, memory.size)
    yield NixlAddress.unpack(transport.metadata())
    transport.close()


@pytest.fixture
def probe() -> Iterator[MetadataProbe]:
    with closing(MetadataProbe()) as made:
        yield made


def helper(probe: MetadataProbe) -> int:
    assert probe._process is not None
    return probe._process.pid


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_what_was_found_usable_is_not_tried_again(
    probe: MetadataProbe, address: NixlAddress
) -> None:
    name = probe.try_out(address, [])
    assert name.startswith("honest-")
    os.kill(helper(probe), signal.SIGSTOP)
    assert probe.try_out(address, []) == name, "a stopped process was asked"
    os.kill(helper(probe), signal.SIGCONT)


def test_a_process_that_was_killed_is_replaced_and_leaves_no_zombie(
    probe: MetadataProbe, address: NixlAddress
) -> None:
    probe.start()
    first = helper(probe)
    os.kill(first, signal.SIGKILL)
    until(lambda: gone(first), "not dead")
    probe.try_out(address, [])
    assert helper(probe) != first
    assert not Path(f"/proc/{first}").exists(), "a zombie"
    second = helper(probe)
    probe.close()
    assert not Path(f"/proc/{second}").exists()


def test_a_process_that_does_not_answer_refuses_the_peer_and_is_replaced(
    address: NixlAddress,
) -> None:
    with closing(MetadataProbe(ProbeLimits(deadline=0.2, start=0.3))) as probe:
        probe.start()
        stopped = helper(probe)
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(MetadataUnusable, match="did not answer in time"):
            probe.try_out(address, [])
        assert not Path(f"/proc/{stopped}").exists()


def test_more_than_its_share_of_the_machine_is_not_spent(address: NixlAddress) -> None:
    with closing(MetadataProbe(ProbeLimits(share=1e-6, burst=1e-3))) as probe:
        probe.try_out(address, [])
        bad = replace(address, blob=address.blob[:-1])
        with pytest.raises(MetadataUnusable, match="too many new peers"):
            probe.try_out(bad, [])
        assert probe.try_out(address, []), "who is known is not held up by who is not"


def test_after_close_nobody_new_is_tried(probe: MetadataProbe, address: NixlAddress) -> None:
    probe.close()
    with pytest.raises(MetadataUnusable, match="shutting down"):
        probe.try_out(address, [])


def test_it_ends_with_its_daemon_however_that_ends() -> None:
    code = (
        "from tasuki.transfer.transports.nixl.peer_metadata import MetadataProbe as P; import sys;"
        "p = P(); p.start(); print(p._process.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        assert not gone(pid)
        daemon.kill()
    until(lambda: gone(pid), "still there")
