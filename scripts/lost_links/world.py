"""Two daemons with a link between them that can be lost in each way, and the answers that an
undisturbed process gives.

Owns the processes and the proxy. Thread rule: disturb() from one thread. Invariant: what disturb()
broke it has mended when it returns.
"""

import os
import re
import signal
import time
import urllib.request
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tasuki.cli.demo.token_comparison import TIE_MARGIN
from tasuki.client.prompt import Prompt

from scripts.lost_links.plan import CONVERSATIONS, NEW_TOKENS, Disturbance, Fault, prompt
from tests.harness.daemons import Node, flags, has_met, kept_address
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.waiting import until

_MEET_SECONDS = 30.0
_REST_SECONDS = 20.0
_LOST = re.compile(r'^tasuki_handovers_lost_total\{cause="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """A prompt, and the tokens that it must be answered with."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def conversations() -> tuple[tuple[Turn, Turn], ...]:
    """Of two turns each, no token of which is a near tie."""
    oracle = Node("serve", *flags(arena_mib=32)).wait_ready()
    try:
        found: list[tuple[Turn, Turn]] = []
        for seed in range(20 * CONVERSATIONS):
            first = _turn(oracle, prompt(seed, 0))
            second = first and _turn(oracle, (*first.prompt, *first.tokens, *prompt(seed, 1)))
            if first and second:
                found.append((first, second))
            if len(found) == CONVERSATIONS:
                return tuple(found)
        raise AssertionError("too few conversations without a near tie")
    finally:
        assert oracle.stop() == 0


def _turn(oracle: Node, tokens: tuple[int, ...]) -> Turn | None:
    asked = Prompt(token_ids=tokens)
    answer = oracle.client.generate(asked, max_new_tokens=NEW_TOKENS, ignore_eos=True).result()
    return Turn(tokens, answer.token_ids) if min(answer.margins) > TIE_MARGIN else None


class World:
    def __init__(self, patience: float) -> None:
        """patience: factor on what is waited for."""
        self._patience = patience
        self.conversations = conversations()
        # How long anybody waits is the host's doing, not the fault's.
        shared = (*flags(arena_mib=128), "--queue-timeout", "300", "--pull-tokens", "1")
        self.prefill = Node("prefill", *shared, bind=kept_address()).wait_ready()
        self._proxy = TcpProxy(self.prefill.address)
        self.decode = Node(
            "decode",
            *shared,
            *("--local-prefill-tokens", "8", "--prefill", self._proxy.address),
            *("--http-bind", "127.0.0.1:0"),
        ).wait_ready()
        self.mend()

    def disturb(self, disturbance: Disturbance) -> None:
        """Inject it and undo it; returns when it is undone."""
        match disturbance.fault:
            case Fault.CUT:
                self._proxy.cut()
                time.sleep(disturbance.lasts)
                self._proxy.heal()
            case Fault.BLACK_HOLE:
                self._proxy.black_hole()
                time.sleep(disturbance.lasts)
                self._proxy.heal()
            case Fault.FREEZE_PREFILL:
                _freeze(self.prefill, disturbance.lasts)
            case Fault.FREEZE_DECODE:
                _freeze(self.decode, disturbance.lasts)

    def mend(self) -> None:
        """Wait until the two nodes have met over a whole link."""
        self._proxy.heal()
        seconds = _MEET_SECONDS * self._patience
        until(lambda: has_met(self.decode), "decode and prefill do not meet", seconds)

    def assert_at_rest(self) -> None:
        """Nothing is held on either node."""
        for node in (self.decode, self.prefill):
            node.assert_at_rest(_REST_SECONDS * self._patience)

    def lost_by_cause(self) -> dict[str, int]:
        """Hand-overs, as the decode node counts them."""
        with urllib.request.urlopen(f"http://{self.decode.http_address}/metrics") as reply:
            counts = _LOST.findall(reply.read().decode())
        return {cause: int(float(count)) for cause, count in counts if float(count)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        statuses = [node.stop() for node in (self.decode, self.prefill)]
        self._proxy.close()
        assert statuses == [0, 0] or error is not None, statuses


def _freeze(node: Node, seconds: float) -> None:
    os.kill(node.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(node.pid, signal.SIGCONT)
