"""The daemons under attack: a prefill and a decode node with API keys of every scope.

Owns the file of keys. Thread rule: one thread starts, checks and fixes the nodes; any thread may
call them. Invariant: after fix() both nodes run, take requests and are connected.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from scripts.attack.http_call import HttpCall, ask
from scripts.attack.tally import Tally
from scripts.common.daemons import Pair
from scripts.common.probe import Probe, resident
from tests.harness.daemons import Node, asked, flags, questions

OWNER = "owner-key"
"""The API key given by --api-key, with every scope."""
KEYS = {
    "ann": ("ann-key", "caller"),
    "bob": ("bob-key", "caller"),
    "counter": ("metrics-key", "metrics"),
    "door": ("gateway-key", "gateway"),
    "chief": ("operator-key", "operator"),
}
ANN, BOB = KEYS["ann"][0], KEYS["bob"][0]
STRANGERS = ("ann-key", "metrics-key", "gateway-key", "", "forged", "ann")
"""API keys without the operator's scope: other keys, no key, and invalid keys."""

MOST_SESSIONS = 64
MOST_BUSY_SECONDS = 1.5
"""Largest accepted processor time of a node's event loop while one /health probe waits, seconds."""
MOST_SILENT_SECONDS = 60.0
MOST_KEPT_BYTES = 300 * 2**20
"""Largest accepted growth of a node's memory after one attack, bytes."""
MOST_HELD_BYTES = 900 * 2**20
"""Largest accepted growth of a node's memory during one attack, bytes."""
_REST_SECONDS = 60.0
_QUESTIONS = (40, 300)


class World(Pair):
    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        keys = Path(self._folder.name) / "keys"
        keys.write_text("".join(f"{name} {key} {scope}\n" for name, (key, scope) in KEYS.items()))
        self.flags = (
            *(*flags(arena_mib=48), "--api-key", OWNER, "--api-keys", str(keys)),
            # Rogue peers use NIXL.
            *("--prefill-chunk-tokens", "64", "--transport", "nixl"),
        )
        small = (*self.flags, "--max-sessions", str(MOST_SESSIONS), "--http-bind", "127.0.0.1:0")
        self.right = questions(_QUESTIONS)
        super().__init__(small, small)
        self._asked_again = 0

    @contextmanager
    def watched(self, tally: Tally) -> Iterator[None]:
        """Watch the nodes during a block with an attack. At the block's end check the rules common
        to all attacks, and record findings."""
        before = {node: resident(node.pid) for node in self.nodes}
        words = {node: node.last_words for node in self.nodes}
        probes = {
            node: Probe(node.http_address, node.pid, MOST_SILENT_SECONDS) for node in self.nodes
        }
        for probe in probes.values():
            probe.start()
        try:
            yield
        finally:
            for probe in probes.values():
                probe.stop()
        self.fix(tally)
        for node, name in ((self.prefill, "prefill"), (self.decode, "decode")):
            self._judge(tally, name, node, probes[node], before[node])
            if any("Traceback" in line for line in _since(words[node], node.last_words)):
                tally.finding(f"{name}: a traceback in its log: {node.last_words[-1]}")
        self._ask_again(tally)

    def _judge(self, tally: Tally, name: str, node: Node, probe: Probe, before: int) -> None:
        if probe.worst_busy > MOST_BUSY_SECONDS:
            tally.finding(
                f"{name}: /health waited for {probe.worst_busy:.1f} s of the loop's processor time"
            )
        if probe.worst_wait > MOST_SILENT_SECONDS or not probe.answers:
            tally.finding(
                f"{name}: /health answered {probe.answers} times, {probe.refused} not, the "
                f"slowest after {probe.worst_wait:.1f} s"
            )
        held, kept = probe.most_memory - before, resident(node.pid) - before
        if held > MOST_HELD_BYTES or kept > MOST_KEPT_BYTES:
            tally.finding(f"{name}: {held >> 20} MiB more in the attack, {kept >> 20} after it")
        try:
            node.assert_at_rest(_REST_SECONDS)
        except AssertionError as error:
            tally.finding(f"{name}: not at rest: {error}")

    def fix(self, tally: Tally) -> None:
        """Restart dead or rejecting nodes, and record each as a finding. Waits until the nodes are
        connected."""
        for name, node in (("prefill", self.prefill), ("decode", self.decode)):
            trouble = _trouble(node)
            if trouble is None:
                continue
            tally.finding(f"{name}: {trouble}")
            node.put_down()
            node.start_again()
        self.meet()

    def _ask_again(self, tally: Tally) -> None:
        """Send the known prompts again, cached and uncached, and compare the answers with the
        earlier ones."""
        self._asked_again += 1
        for salt in (b"right", f"anew {self._asked_again}".encode()):
            for question in self.right:
                try:
                    answer = asked(self.decode, question.prompt, salt).result()
                except Exception as error:
                    tally.finding(f"a right request is refused afterwards: {error}")
                    continue
                if answer.token_ids != question.tokens:
                    length = len(question.prompt)
                    tally.finding(f"another answer than before: {length} tokens, {salt!r}")

    def channel(self, node: Node) -> grpc.Channel:
        """Open a separate gRPC connection to the node."""
        return grpc.insecure_channel(node.address, options=[("grpc.use_local_subchannel_pool", 1)])

    def close(self) -> list[int]:
        """Stop all nodes, and return no exit status, because the effects of attacks were judged
        before."""
        for node in self.nodes:
            node.put_down()
        self._folder.cleanup()
        return []


def _since(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """Return the log lines of `now` written after the end of `before`."""
    for shared in range(min(len(before), len(now)), 0, -1):
        if before[-shared:] == now[:shared]:
            return now[shared:]
    return now


def _trouble(node: Node) -> str | None:
    """Return the reason for a node taking no requests, or None if it takes requests."""
    status = node.exit_status
    if status is not None:
        return f"ended with {status}: {' | '.join(node.last_words[-3:])}"
    ready = ask(node.http_address, HttpCall("GET", "/ready"), Tally())
    return None if ready == 200 else f"/ready answers {ready}"
