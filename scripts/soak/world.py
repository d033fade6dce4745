"""The daemons of a soak: a disturbed pair with a proxy between, and an undisturbed fused oracle.

Owns processes and the proxy. Thread rule: one thread disturbs and
mends; any may read. Invariant: after mend() both nodes run, unfrozen, connected over a whole link.
"""

import os
import signal
import threading
import time
from types import TracebackType
from typing import Self

from tasuki.client.prompt import Prompt
from tasuki.client.session import Client

from scripts.soak.plan import Disturbance, Fault
from tests.harness.daemons import Node, flags, has_met, kept_address, random_prompt
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.waiting import until

_MEND_SECONDS = 20.0
_ENDLESS = 5000


class World:
    def __init__(self, storm_clients: int, patience: float) -> None:
        """storm_clients: how many ask and leave at once in an abort storm. patience: factor on
        what is waited for."""
        self._storm_clients = storm_clients
        self.patience = patience
        self._storms = 0
        self.decode_deaths = 0
        """How often the decode node was about to die so far."""
        self._decode_stands = threading.Event()
        # How long anybody waits is the host's doing, not the fault's.
        small = (*flags(arena_mib=32), "--queue-timeout", "600")
        self.oracle = Node("serve", *flags(arena_mib=128)).wait_ready()
        chunks = ("--prefill-chunk-tokens", "128", "--max-batch", "2")
        self.prefill = Node("prefill", *small, *chunks, bind=kept_address()).wait_ready()
        self.proxy = TcpProxy(self.prefill.address)
        target = ("--prefill", self.proxy.address)
        self.decode = Node("decode", *small, *target, bind=kept_address()).wait_ready()
        self.mend()

    def disturb(self, disturbance: Disturbance) -> None:
        """Inject it and undo it; returns when it is undone."""
        seconds = disturbance.lasts
        match disturbance.fault:
            case Fault.KILL_PREFILL:
                self.prefill.kill()
                time.sleep(seconds)
                self.prefill.start_again()
            case Fault.STOP_PREFILL:
                status = self.prefill.stop()
                failure = f"the prefill node ended with {status}: {self.prefill.last_words}"
                assert status == 0, failure
                self.prefill.start_again()
            case Fault.KILL_DECODE:
                self._decode_stands.clear()
                self.decode_deaths += 1
                self.decode.kill()
                time.sleep(seconds)
                self.decode.start_again()
                self._decode_stands.set()
            case Fault.FREEZE_PREFILL:
                self._freeze(self.prefill, seconds)
            case Fault.FREEZE_DECODE:
                self._freeze(self.decode, seconds)
            case Fault.CUT:
                self.proxy.cut()
            case Fault.BLACK_HOLE:
                self.proxy.black_hole()
            case Fault.DELAY:
                self.proxy.delay(0.15)
            case Fault.THROTTLE:
                self.proxy.throttle(50_000)
            case Fault.STORM:
                self._storm(seconds)
        if disturbance.fault in (Fault.CUT, Fault.BLACK_HOLE, Fault.DELAY, Fault.THROTTLE):
            time.sleep(seconds)
            self.proxy.heal()

    @staticmethod
    def _freeze(node: Node, seconds: float) -> None:
        os.kill(node.pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(node.pid, signal.SIGCONT)

    def _storm(self, seconds: float) -> None:
        self._storms += 1
        with Client(self.decode.address) as client:
            streams = [
                client.generate(
                    Prompt(token_ids=random_prompt(300, self._storms)),
                    max_new_tokens=_ENDLESS,
                    ignore_eos=True,
                    cache_salt=b"storm %d" % number,
                )
                for number in range(self._storm_clients)
            ]
            time.sleep(seconds)
            for stream in streams:
                stream.cancel()

    def wait_for_decode(self, seconds: float) -> int:
        """Until the decode node takes calls, or `seconds`; its deaths before that moment."""
        deadline = time.monotonic() + seconds
        while True:
            # Read in this order: a death that this count misses is one of the caller's own time.
            deaths = self.decode_deaths
            if self._decode_stands.wait(0.0) or time.monotonic() > deadline:
                return deaths
            self._decode_stands.wait(deadline - time.monotonic())

    def mend(self) -> None:
        """Wait until the two nodes have met over a whole link."""
        self.proxy.heal()
        self._decode_stands.set()
        seconds = _MEND_SECONDS * self.patience
        until(lambda: has_met(self.decode), "decode and prefill do not find each other", seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        statuses = [node.stop() for node in (self.decode, self.prefill, self.oracle)]
        self.proxy.close()
        assert statuses == [0, 0, 0] or error is not None, statuses
