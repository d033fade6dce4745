"""A pair whose nodes may be killed or frozen, and whose link may be lost in each way.

Owns the proxy between the two. Thread rule: one thread disturbs and mends; any may read. Invariant:
what disturb() broke it has mended when it returns; after mend() both nodes run, unfrozen, connected
over a whole link.
"""

import os
import signal
import time
from collections.abc import Callable
from enum import Enum

from scripts.pair import Pair
from tests.harness.daemons import Node
from tests.harness.tcp_proxy import TcpProxy


class Fault(Enum):
    KILL_PREFILL = "prefill killed"
    KILL_DECODE = "decode killed"
    FREEZE_PREFILL = "prefill frozen"
    FREEZE_DECODE = "decode frozen"
    STOP_PREFILL = "prefill stopped"
    CUT = "link cut"
    BLACK_HOLE = "link half-open"
    DELAY = "link delayed"
    THROTTLE = "link throttled"
    STORM = "abort storm"


Undo = Callable[[], object]


class FaultyPair(Pair):
    proxy: TcpProxy

    def disturb(self, fault: Fault, seconds: float) -> None:
        """Inject it, and undo it after so long."""
        undo = self._inject(fault)
        try:
            time.sleep(seconds)
        finally:
            undo()

    def _inject(self, fault: Fault) -> Undo:
        match fault:
            case Fault.KILL_PREFILL:
                self.prefill.kill()
                return self.prefill.start_again
            case Fault.KILL_DECODE:
                self.decode.kill()
                return self.decode.start_again
            case Fault.STOP_PREFILL:
                status = self.prefill.stop()
                failure = f"the prefill node ended with {status}: {self.prefill.last_words}"
                assert status == 0, failure
                return self.prefill.start_again
            case Fault.FREEZE_PREFILL:
                return _freeze(self.prefill)
            case Fault.FREEZE_DECODE:
                return _freeze(self.decode)
            case Fault.CUT:
                self.proxy.cut()
            case Fault.BLACK_HOLE:
                self.proxy.black_hole()
            case Fault.DELAY:
                self.proxy.delay(0.15)
            case Fault.THROTTLE:
                self.proxy.throttle(50_000)
            case _:
                raise ValueError(f"{fault}: no pair alone has it")
        return self.proxy.heal

    def _link(self, address: str) -> str:
        self.proxy = TcpProxy(address)
        return self.proxy.address

    def mend(self) -> None:
        """Wait until the two nodes have met over a whole link."""
        self.proxy.heal()
        self.meet()

    def close(self) -> list[int]:
        statuses = super().close()
        self.proxy.close()
        return statuses


def _freeze(node: Node) -> Undo:
    os.kill(node.pid, signal.SIGSTOP)
    return lambda: os.kill(node.pid, signal.SIGCONT)
