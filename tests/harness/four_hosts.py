"""Two prefill and two decode nodes on four hosts joined by etcd, as a program on the first.

`python -m tests.harness.four_hosts FOLDER HOST_NAMESPACE ...`; test_hosts.py starts it. It is a
separate process, because gRPC's threads stay in the namespace of their beginning. It runs on a host
with the nodes' network interface, because its children see the host's /sys, and UCX reads it.
"""

import asyncio
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from scripts.chaos.load import Users
from scripts.common.tally import Tally
from tests.harness.daemons import Node, flags
from tests.harness.etcd_process import EtcdProcess, running_etcd
from tests.harness.namespaces import DEVICE, host_address
from tests.harness.programs import daemon_of
from tests.harness.waiting import until

NAMES = ("p1", "p2", "d1", "d2")
STREAMS = 12
KEY = "a-key-of-this-test"


class FourHosts:
    def __init__(self, etcd: EtcdProcess, spaces: tuple[str, ...], stack: ExitStack) -> None:
        os.environ["UCX_NET_DEVICES"] = DEVICE
        self.nodes: dict[str, Node] = {}
        for number, (name, space) in enumerate(zip(NAMES, spaces, strict=True)):
            command = "prefill" if name.startswith("p") else "decode"
            node = Node(
                *(command, *flags(arena_mib=128), "--name", name, "--etcd", etcd.url),
                *("--insecure", "--api-key", KEY, "--drain-timeout", "60"),
                bind=f"{host_address(number)}:0",
                launch=daemon_of(space),
            )
            stack.callback(node.stop)
            self.nodes[name] = node
        for node in self.nodes.values():
            node.wait_ready()
        for name in ("d1", "d2"):
            self.wait_for_members(name, {"p1", "p2"})

    def wait_for_members(self, decode: str, wanted: set[str]) -> None:
        def members() -> set[str]:
            return {peer.name for peer in self.nodes[decode].stats().prefill_nodes}

        until(lambda: members() == wanted, members)

    @property
    def front_doors(self) -> str:
        """The gRPC target with both decode nodes' addresses; gRPC takes the first to answer."""
        return "ipv4:" + ",".join(self.nodes[name].address for name in ("d1", "d2"))


async def play(hosts: FourHosts) -> Tally:
    """Kill one prefill node and drain one decode node while all clients have conversations. Returns
    their counts."""
    tally = Tally()
    over = asyncio.Event()
    users = Users(hosts.front_doors, STREAMS, 1, tally, KEY)
    talking = asyncio.ensure_future(users.talk(over.is_set))
    await _turns(tally, STREAMS)
    hosts.nodes["p1"].kill()
    await _turns(tally, STREAMS)
    hosts.nodes["d1"].ask_to_stop()
    assert await asyncio.to_thread(hosts.nodes["d1"].stop) == 0
    await _turns(tally, 2 * STREAMS)
    over.set()
    await talking
    return tally


async def _turns(tally: Tally, more: int) -> None:
    """Wait until `more` further turns have ended."""
    wanted = tally["turns"] + more
    async with asyncio.timeout(90):
        while tally["turns"] < wanted:
            await asyncio.sleep(0.05)


def main(folder: str, *spaces: str) -> None:
    with ExitStack() as stack:
        etcd = stack.enter_context(running_etcd(Path(folder), host_address(0)))
        hosts = FourHosts(etcd, spaces, stack)
        tally = asyncio.run(play(hosts))
        print(tally)
        assert tally.good, tally
        hosts.wait_for_members("d2", {"p2"})
        for name in ("p2", "d2"):
            hosts.nodes[name].assert_at_rest()
        assert hosts.nodes["d2"].arrived() > 0, "nothing was handed over"
        assert [hosts.nodes[name].stop() for name in ("d2", "p2")] == [0, 0]


if __name__ == "__main__":
    main(*sys.argv[1:])
