"""Real daemons as child processes. A test may kill them, restart them and send them requests.

A Node is one daemon with a client. It keeps its address when it restarts. Every wait has a deadline
and ends as soon as its condition holds.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import grpc

from tasuki.cli.demo import TIE_MARGIN
from tasuki.cli.launcher import Daemon
from tasuki.client.answer import Answer, AnswerStream
from tasuki.client.channel import bearing
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.vision.config import placeholder_ids
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.transfer import failpoints
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.processes import free_port
from tests.harness.waiting import HANG_SECONDS, until

OWNERS = ("free", "working", "tree", "granted", "quarantined")
HELD = ("working", "granted", "quarantined", "pinned")
NEW_TOKENS = 40
PLACEHOLDERS = placeholder_ids(embedded_model())
COUNTED_CHUNKS = ("--layers-per-window", "1")
"""Flags of a prefill node for tests counting layer chunks. Without them the number of chunks
depends on the link's rate."""


CHUNK_IN_TRANSFER = 48


def resting_at(chunk: int) -> dict[str, str]:
    """Return the environment of a prefill node pausing each transfer for a second before it posts
    the layer chunk `chunk`. On a quick machine a transfer would otherwise end before a test sees
    it."""
    place = failpoints.Place.SENDER_BEFORE_POST.value
    return {failpoints.VARIABLE: f"{place}@{chunk}=delay:1.0"}


def flags(
    model: Path | None = None, dtype: str = "float32", arena_mib: int = 96, device: str = "cpu"
) -> list[str]:
    return [
        *("--device", device),
        *("--model", str(embedded_model() if model is None else model)),
        *("--dtype", dtype, "--arena-mib", str(arena_mib)),
        # Routes must not depend on the speed of this machine.
        *("--route", "fixed"),
    ]


def kept_address() -> str:
    """Return a loopback address with a free port, for a node killed and started again by the
    test."""
    return f"127.0.0.1:{free_port()}"


class Node:
    """One daemon process with a client: start it, then kill or stop it, and start it again."""

    def __init__(
        self,
        command: str,
        *flags: str,
        bind: str = "127.0.0.1:0",
        launch: Callable[[str, Sequence[str], str], Daemon] = ForkedDaemon,
    ) -> None:
        """Start the daemon. bind: its address. launch: starts the process; give Daemon if the
        interpreter's start, its end or a namespace is part of the test."""
        self._command = command
        self._flags = flags
        self._launch = launch
        self.api_key = flags[flags.index("--api-key") + 1] if "--api-key" in flags else ""
        self._daemon = launch(command, flags, bind)
        self._running = True
        self.address = ""
        self._admin: grpc.Channel
        self._bearing: grpc.Channel
        self.client: Client

    @property
    def pid(self) -> int:
        return self._daemon.pid

    @property
    def last_words(self) -> tuple[str, ...]:
        """The last lines the daemon wrote to stderr."""
        return self._daemon.last_words

    @property
    def running(self) -> bool:
        return self._running

    @property
    def exit_status(self) -> int | None:
        """The exit status of the daemon's process; None while it runs, even if it was asked to
        end."""
        return self._daemon.exit_status

    @property
    def http_address(self) -> str:
        address = self._daemon.http_address
        assert address is not None, "started without --http-bind"
        return address

    @property
    def handover_address(self) -> str:
        """The prefill node's address for decode nodes. REQUIRES: wait_ready."""
        return self._daemon.handover_address or self.address

    def wait_ready(self) -> "Node":
        self.address = self._daemon.wait_ready()
        # Each life has its own client, so that gRPC's reconnect backoff does not affect the test.
        self.client = Client(self.address, api_key=self.api_key)
        self._admin = grpc.insecure_channel(
            self.address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._bearing = bearing(self._admin, self.api_key) if self.api_key else self._admin
        return self

    def start_again(self) -> None:
        """Start the daemon again at the same address. REQUIRES: it was killed or stopped."""
        self._daemon = self._launch(self._command, self._flags, self.address)
        self._running = True
        self.wait_ready()

    def kill(self) -> float:
        """Send SIGKILL to the daemon, and return the monotonic time of the kill."""
        os.kill(self.pid, signal.SIGKILL)
        killed = time.monotonic()
        assert self._ended() == -signal.SIGKILL
        return killed

    def put_down(self) -> None:
        """Send SIGKILL if the daemon still runs, and do not check its exit status. Idempotent."""
        if self._running:
            if self._daemon.exit_status is None:
                os.kill(self.pid, signal.SIGKILL)
            self._running = False
            if self.address:
                self.client.close()
                self._admin.close()
            self._daemon.stop()

    def ask_to_stop(self) -> None:
        self._daemon.ask_to_stop()

    def stop(self) -> int:
        """Send SIGTERM to the daemon if none was sent yet, and return the exit status."""
        return self._ended() if self._running else 0

    def _ended(self) -> int:
        self._running = False
        if self.address:
            self.client.close()
            self._admin.close()
        status = self._daemon.stop()
        assert "Traceback" not in "\n".join(self._daemon.last_words), self._daemon.last_words
        return status

    def stats(self) -> pb.StatsResponse:
        stub = pb_grpc.CacheAdminStub(self._bearing)
        reply: pb.StatsResponse = stub.Stats(pb.StatsRequest(), timeout=HANG_SECONDS)
        return reply

    def drain(self) -> None:
        """Drain the node: return when no request is in flight. The node then rejects new
        requests."""
        stub = pb_grpc.CacheAdminStub(self._bearing)
        stub.Drain(pb.DrainRequest(), timeout=HANG_SECONDS)

    def undrain(self) -> None:
        """End the drain: the node accepts requests again."""
        stub = pb_grpc.CacheAdminStub(self._bearing)
        stub.Undrain(pb.UndrainRequest(), timeout=HANG_SECONDS)

    def story(self) -> dict[str, object]:
        """Return text with the part of stats() useful in a failure's message."""
        stats = self.stats()
        return {
            "requests": dict(stats.requests),
            "pages": dict(stats.pages),
            "slots": dict(stats.slots),
            "windows": dict(stats.windows),
            "leases": stats.tree["leases"],
        }

    def requests(self, state: str) -> int:
        """Return the number of the node's requests in this engine state."""
        return self.stats().requests[state]

    def arrived(self) -> int:
        """Return the number of layer chunks arrived at this node since its start."""
        return self.stats().windows["landed"]

    def at_rest(self) -> bool:
        """Return True if the node holds no page, slot, lease or request. Fails at once if an id is
        not accounted for."""
        stats = self.stats()
        assert stats.integrity == "ok"
        pools = (stats.pages, stats.slots)
        for pool in pools:
            assert sum(pool[owner] for owner in OWNERS) == pool["total"], self.story()
        held = sum(pool[owner] for pool in pools for owner in HELD)
        return held == 0 and stats.tree["leases"] == 0 and not stats.requests

    def assert_at_rest(self, seconds: float = HANG_SECONDS) -> None:
        until(self.at_rest, self.story, seconds)


@contextmanager
def fleet(launch: Callable[..., Daemon] = ForkedDaemon) -> Iterator[Callable[..., Node]]:
    """Yield a function starting nodes. At the end all nodes still running stop, the last one
    first."""
    with ExitStack() as stack:

        def start(command: str, *more: str, launch: Callable[..., Daemon] = launch) -> Node:
            node = Node(command, *more, launch=launch)
            stack.callback(_stop, node)
            return node.wait_ready()

        yield start


def _stop(node: Node) -> None:
    assert node.stop() == 0, node.last_words


class _HasStats(Protocol):
    def stats(self) -> pb.StatsResponse: ...


def meet(decode: _HasStats) -> None:
    """Wait until the decode node is connected to every prefill node it knows. Before this it
    prefills prompts itself. decode: the node, or a client of it."""
    until(lambda: has_met(decode), decode.stats)


def has_met(decode: _HasStats) -> bool:
    """Return True if the decode node knows a prefill node and is connected to all it knows."""
    known = decode.stats().prefill_nodes
    return bool(known) and all(node.state == pb.PREFILL_NODE_STATE_CONNECTED for node in known)


@dataclass(frozen=True)
class Question:
    """A prompt, and the token ids of its answer by an undisturbed fused node."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def question_of(node: Node, length: int, new_tokens: int = NEW_TOKENS) -> Question:
    """Return a random prompt with its answer from the node. No token of the answer is near a tie,
    so tests may compare answers for equality. length: prompt tokens. new_tokens: answer tokens."""
    for seed in range(20):
        prompt = random_prompt(length, seed)
        answer = asked(node, prompt, b"", new_tokens).result()
        if min(answer.margins) > TIE_MARGIN:
            return Question(prompt, answer.token_ids)
    raise AssertionError(f"no prompt of {length} tokens without a near tie")


def questions(lengths: tuple[int, ...]) -> tuple[Question, ...]:
    with fleet() as start:
        node = start("serve", *flags(), "--prefill-chunk-tokens", "64")
        return tuple(question_of(node, length) for length in lengths)


def random_prompt(length: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(length * 1000 + seed)
    drawn = (rng.randrange(2000) for _ in range(length))
    # The placeholders of pictures are refused as ids.
    return tuple(token - 100 if token in PLACEHOLDERS else token for token in drawn)


def asked(
    node: Node, prompt: tuple[int, ...], salt: bytes, new_tokens: int = NEW_TOKENS
) -> AnswerStream:
    return node.client.generate(
        Prompt(token_ids=prompt), max_new_tokens=new_tokens, ignore_eos=True, cache_salt=salt
    )


class Pair:
    """A prefill and a decode node. The prefill node computes one prompt at a time, in small chunks,
    to give a test time to disturb it. Each question has its own salt, so none is answered from the
    cache of an earlier one."""

    def __init__(
        self,
        questions: tuple[Question, ...],
        between: Callable[[str], str] = lambda address: address,
        device: str = "cpu",
        more: tuple[str, ...] = (),
    ) -> None:
        """Start both nodes. questions: prompts with known answers. between: maps the prefill node's
        address to the address given to the decode node. more: flags of both nodes."""
        self._questions = questions
        self._salts = 0
        self.prefill = Node(
            "prefill",
            *flags(device=device),
            *("--prefill-chunk-tokens", "64", "--max-batch", "1", *COUNTED_CHUNKS, *more),
            bind=kept_address(),
            launch=partial(ForkedDaemon, environment=resting_at(CHUNK_IN_TRANSFER)),
        ).wait_ready()
        self._target = between(self.prefill.address)
        # Small chunks here too: the answer to Stats waits for the running forward.
        self.decode = Node(
            "decode",
            *flags(device=device),
            *("--prefill-chunk-tokens", "64", "--prefill", self._target, *more),
            bind=kept_address(),
        ).wait_ready()

    def ask(self, number: int, new_tokens: int = NEW_TOKENS) -> AnswerStream:
        self._salts += 1
        prompt, salt = self._questions[number].prompt, str(self._salts).encode()
        return asked(self.decode, prompt, salt, new_tokens)

    def pages(self, number: int) -> int:
        """Return the number of whole pages in the prompt of question `number`."""
        return len(self._questions[number].prompt) // 64

    def right(self, number: int, stream: AnswerStream) -> Answer:
        """Read the answer to question `number` to its end, and return it. It must equal the
        undisturbed answer."""
        answer = stream.result()
        assert answer.token_ids == self._questions[number].tokens
        return answer

    def prefill_state(self) -> int:
        """Return the state of the prefill node, as the decode node knows it."""
        (node,) = self.decode.stats().prefill_nodes
        assert node.address == self._target
        return node.state

    def fix(self) -> None:
        """Restart any dead node at its old address, and wait until the two are connected."""
        for node in (self.prefill, self.decode):
            if not node.running:
                node.start_again()
        until(lambda: self.prefill_state() == pb.PREFILL_NODE_STATE_CONNECTED, "not connected")

    def assert_at_rest(self) -> None:
        for node in (self.prefill, self.decode):
            if node.running:
                node.assert_at_rest()

    def stop(self) -> None:
        assert [self.decode.stop(), self.prefill.stop()] == [0, 0]
