"""The daemons of a workload: a disturbed prefill and decode node, and an undisturbed fused node
(the oracle).

Owns the oracle, the proxy between the two nodes if their connections may be disturbed, and storms
of aborts. Thread rule: one thread disturbs and fixes; any thread may read. Invariants: disturb()
has undone its fault when it returns. After fix() both nodes run, not frozen, and are connected.
"""

import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence

from scripts.chaos.faults import Fault
from scripts.common.daemons import Pair
from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tests.harness.daemons import Node, random_prompt
from tests.harness.tcp_proxy import TcpProxy

_MEET_SECONDS = 30.0
_ENDLESS = 5000
_LOST = re.compile(r'^tasuki_handovers_lost_total\{cause="(\w+)"\} (\S+)$', re.MULTILINE)
Undo = Callable[[], object]


class World(Pair):
    def __init__(
        self,
        prefill: Sequence[str],
        decode: Sequence[str],
        faults: Sequence[Fault] = (),
        oracle: Sequence[str] = (),
        patience: float = 1.0,
        storm_clients: int = 0,
    ) -> None:
        """Start the daemons. prefill, decode, oracle: flags of the nodes; without oracle flags
        there is no oracle. faults: faults allowed for disturb(). Node faults are always possible;
        connection faults need a proxy, started if one is named. patience: factor on timeouts.
        storm_clients: number of requests in an abort storm; all are aborted at the fault's end."""
        self.patience = patience
        self._proxy: TcpProxy | None = None
        self._has_proxy = any(fault.is_of_link for fault in faults)
        self._storm_clients = storm_clients
        self._storms = 0
        self.decode_deaths = 0
        """Number of faults so far ending the decode node's process."""
        self._decode_stands = threading.Event()
        self._decode_stands.set()
        self._oracles = [Node("serve", *oracle).wait_ready()] if oracle else []
        # Waiting times depend on the host, not on the fault.
        waits = ("--queue-timeout", "600")
        super().__init__((*prefill, *waits), (*decode, *waits), _MEET_SECONDS * patience)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*super().nodes, *self._oracles)

    @property
    def oracle(self) -> Node:
        """Return the undisturbed node. REQUIRES: there is one."""
        return self._oracles[0]

    def disturb(self, fault: Fault, seconds: float = 0.0) -> None:
        """Inject a fault, and undo it after `seconds`. A fault stopping a node lasts as long as the
        node's drain instead."""
        undo = self._inject(fault)
        try:
            time.sleep(0.0 if fault in (Fault.STOP_PREFILL, Fault.STOP_DECODE) else seconds)
        finally:
            undo()

    def _inject(self, fault: Fault) -> Undo:
        if fault.is_of_link:
            return self._lose_link(fault)
        if fault is Fault.STORM:
            return self._storm()
        what, _, name = fault.value.partition("-")
        node = self.prefill if name == "prefill" else self.decode
        if what == "freeze":
            os.kill(node.pid, signal.SIGSTOP)
            return lambda: os.kill(node.pid, signal.SIGCONT)
        if node is self.decode:
            self._decode_stands.clear()
            self.decode_deaths += 1
        if what == "kill":
            node.kill()
        else:
            status = node.stop()
            assert status == 0, f"the {name} node ended with {status}: {node.last_words}"
        return lambda: self._begin_again(node)

    def _begin_again(self, node: Node) -> None:
        node.start_again()
        self._decode_stands.set()

    def _lose_link(self, fault: Fault) -> Undo:
        assert self._proxy is not None, f"{fault}: name it when the world is made"
        match fault:
            case Fault.CUT:
                self._proxy.cut()
            case Fault.HALF_OPEN:
                self._proxy.black_hole()
            case Fault.DELAY:
                self._proxy.delay(0.15)
            case _:
                self._proxy.throttle(50_000)
        return self._proxy.heal

    def _storm(self) -> Undo:
        self._storms += 1
        client = Client(self.decode.address)
        prompt = Prompt(token_ids=random_prompt(300, self._storms))
        streams = [
            client.generate(
                prompt, max_new_tokens=_ENDLESS, ignore_eos=True, cache_salt=b"storm %d" % number
            )
            for number in range(self._storm_clients)
        ]

        def leave() -> None:
            for stream in streams:
                stream.cancel()
            client.close()

        return leave

    def wait_for_decode(self, seconds: float) -> int:
        """Wait until the decode node takes calls, at most `seconds`. Returns the number of its
        deaths before then."""
        deadline = time.monotonic() + seconds
        while True:
            # Read in this order: a death missed by this count is in the caller's own time.
            deaths = self.decode_deaths
            if self._decode_stands.wait(0.0) or time.monotonic() > deadline:
                return deaths
            self._decode_stands.wait(deadline - time.monotonic())

    def fix(self) -> None:
        """Wait until the two nodes are connected again without disturbances."""
        self._decode_stands.set()
        if self._proxy is not None:
            self._proxy.heal()
        self.meet()

    def lost_by_cause(self) -> dict[str, int]:
        """Return the lost transfers by cause, from the decode node's counters. REQUIRES: it has
        --http-bind."""
        with urllib.request.urlopen(f"http://{self.decode.http_address}/metrics") as reply:
            counts = _LOST.findall(reply.read().decode())
        return {cause: int(float(count)) for cause, count in counts if float(count)}

    def _link(self, address: str) -> str:
        if not self._has_proxy:
            return address
        self._proxy = TcpProxy(address)
        return self._proxy.address

    def close(self) -> list[int]:
        statuses = super().close()
        if self._proxy is not None:
            self._proxy.close()
        return statuses


def undisturbed(client: Client, prompt: tuple[int, ...], salt: bytes, new_tokens: int) -> Answer:
    """Return the undisturbed node's answer to a prompt."""
    asked = Prompt(token_ids=prompt)
    return client.generate(
        asked, max_new_tokens=new_tokens, ignore_eos=True, cache_salt=salt
    ).result()
