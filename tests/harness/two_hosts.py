"""A prefill and a decode node on two hosts, as a program running on the decode node's host.

`python -m tests.harness.two_hosts PREFILL_NAMESPACE DECODE_NAMESPACE SCENARIO`; test_hosts.py
starts it. It is a separate process, because gRPC's threads stay in the namespace of their
beginning.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import (
    CHUNK_IN_TRANSFER,
    COUNTED_CHUNKS,
    Node,
    Pair,
    flags,
    questions,
    resting_at,
)
from tests.harness.namespaces import DECODE_ADDRESS, DEVICE, PREFILL_ADDRESS, ip
from tests.harness.pair_moments import handed_over, in_transfer
from tests.harness.programs import daemon_of
from tests.harness.waiting import until

SHORT, LONG = range(2)
LOST, CONNECTED = pb.PREFILL_NODE_STATE_LOST, pb.PREFILL_NODE_STATE_CONNECTED
OFF_LOOPBACK = ("--insecure", "--api-key", "a-key-of-this-test")


class TwoHosts(Pair):
    def __init__(self, prefill_space: str, decode_space: str, lengths: tuple[int, ...]) -> None:
        """Start both nodes, each in its network namespace. lengths: prompt lengths of the
        questions."""
        self.decode_space = decode_space
        self._questions = questions(lengths)
        self._salts = 0
        os.environ["UCX_NET_DEVICES"] = DEVICE
        small = ["--prefill-chunk-tokens", "64", "--max-batch", "1", *OFF_LOOPBACK]
        self.prefill = Node(
            *("prefill", *flags(), *small, *COUNTED_CHUNKS),
            bind=f"{PREFILL_ADDRESS}:0",
            launch=partial(daemon_of(prefill_space), environment=resting_at(CHUNK_IN_TRANSFER)),
        ).wait_ready()
        self._target = self.prefill.address
        self.decode = Node(
            *("decode", *flags(), *OFF_LOOPBACK, "--prefill", self._target),
            bind=f"{DECODE_ADDRESS}:0",
        ).wait_ready()
        self.fix()

    def link(self, state: str) -> None:
        ip("-n", self.decode_space, "link", "set", DEVICE, state)


def works(pair: TwoHosts) -> None:
    handed_over(pair, SHORT)
    pair.assert_at_rest()


def link_goes_down_and_up(pair: TwoHosts) -> None:
    stream = in_transfer(pair, LONG)
    pair.link("down")
    until(lambda: pair.prefill_state() == LOST, "the decode node has not noticed")
    assert pair.right(LONG, stream).usage.local_fallback
    pair.decode.assert_at_rest()
    written = dict(pair.decode.stats().windows)
    pair.link("up")
    until(lambda: pair.prefill_state() == CONNECTED, "not found again")
    time.sleep(2.0)
    now = dict(pair.decode.stats().windows)
    # The granted ids are free by now, so nothing of the old transfer may arrive.
    assert now == written, (written, now)
    pair.assert_at_rest()
    handed_over(pair, SHORT)


SCENARIOS: dict[str, tuple[Callable[[TwoHosts], None], tuple[int, ...]]] = {
    works.__name__: (works, (600,)),
    link_goes_down_and_up.__name__: (link_goes_down_and_up, (600, 4000)),
}


def main(prefill_space: str, decode_space: str, name: str) -> None:
    scenario, lengths = SCENARIOS[name]
    pair = TwoHosts(prefill_space, decode_space, lengths)
    try:
        scenario(pair)
    finally:
        pair.link("up")
        pair.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
