"""The daemons of a soak: a disturbed pair that drafts, with host memory below the prefill node's
arena, and an undisturbed fused oracle that does and has neither.

Owns the oracle and storms of aborts. Thread rule and invariant: as those of a FaultyPair.
"""

import threading
import time

from scripts.faulty_pair import Fault, FaultyPair, Undo
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tests.harness.daemons import Node, flags, random_prompt

_MEND_SECONDS = 20.0
_ENDLESS = 5000


class World(FaultyPair):
    def __init__(self, storm_clients: int, patience: float, host_cache_gib: float) -> None:
        """storm_clients: how many ask and leave at once in an abort storm. patience: factor on
        what is waited for. host_cache_gib: below the prefill node's arena."""
        self._storm_clients = storm_clients
        self.patience = patience
        self._storms = 0
        self.decode_deaths = 0
        """How often the decode node was about to die so far."""
        self._decode_stands = threading.Event()
        self._decode_stands.set()
        # How long anybody waits is the host's doing, not the fault's.
        small = (*flags(arena_mib=48), "--queue-timeout", "600")
        small += ("--speculate", "tree", "--draft-tokens", "3")
        self.oracle = Node("serve", *flags(arena_mib=128), "--speculate", "off").wait_ready()
        chunks = ("--prefill-chunk-tokens", "128", "--max-batch", "2")
        below = ("--host-cache-gib", str(host_cache_gib)) if host_cache_gib else ()
        super().__init__((*small, *chunks, *below), small, _MEND_SECONDS * patience)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*super().nodes, self.oracle)

    def disturb(self, fault: Fault, seconds: float) -> None:
        """A stop takes as long as the drain does."""
        super().disturb(fault, 0.0 if fault is Fault.STOP_PREFILL else seconds)

    def _inject(self, fault: Fault) -> Undo:
        match fault:
            case Fault.STORM:
                return self._storm()
            case Fault.KILL_DECODE:
                self._decode_stands.clear()
                self.decode_deaths += 1
                start_again = super()._inject(fault)

                def restore() -> None:
                    start_again()
                    self._decode_stands.set()

                return restore
        return super()._inject(fault)

    def _storm(self) -> Undo:
        self._storms += 1
        client = Client(self.decode.address)
        streams = [
            client.generate(
                Prompt(token_ids=random_prompt(300, self._storms)),
                max_new_tokens=_ENDLESS,
                ignore_eos=True,
                cache_salt=b"storm %d" % number,
            )
            for number in range(self._storm_clients)
        ]

        def leave() -> None:
            for stream in streams:
                stream.cancel()
            client.close()

        return leave

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
        self._decode_stands.set()
        super().mend()
