"""Attack by prefill nodes breaking the rules, on a separate decode node: false identities, odd
status, abandoned transfers, listed states never sent. The decode node's clients must get the right
tokens."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from scripts.attack.attack import Attempt
from scripts.attack.attacks.rogue_receiver import damaged, embedded_layout
from scripts.attack.drawing import examples, messages
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc, inference_pb2
from tasuki.pycache._cpp_cache import prefix_hashes
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.transfer.node_identity import metadata_checksum
from tasuki.transfer.transports.nixl.transport import NixlTransport
from tests.harness.daemons import Node, asked
from tests.harness.rogue_receiver import SLABS

_BEATS = (8, 100)
_WAIT_SECONDS = 1000.0
"""Prefill wait in seconds, as reported by the rogue listing states. It is long, so prompts go to
the other prefill node."""
_ASKS = 4
_MEETING_SECONDS = 10.0
_AGAIN_SECONDS = 0.5
"""Seconds between two batches of a listing stream without changes."""
_ODD_LEASES = (0.0, -1.0, 0.2, 1e30, float("nan"))


class Listing:
    """A rogue's false listing of cached prefixes: it lists the next prompt's prefix only. Thread
    rule: any thread. Invariant: a stream begins with a snapshot; the attack may add odd batches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stored = pb.Prefixes()

    def hold(self, prompt: tuple[int, ...], salt: bytes) -> None:
        """List the prompt's whole pages as cached, in place of the earlier listing."""
        end = (len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS
        *_, parent, name = prefix_hashes(np.array(prompt[:end], dtype=np.int32), salt)
        with self._changed:
            self._stored = pb.Prefixes(names=name, parents=parent, tokens=[end])
            self._changed.notify_all()

    def batches(self, goes_on: Callable[[], bool]) -> Iterator[pb.UsableBatch]:
        """Yield the listing as a snapshot, after each change and at intervals, while `goes_on`
        returns True."""
        sequence = 0
        while goes_on():
            sequence += 1
            yield pb.UsableBatch(sequence=sequence, snapshot=True, stored=self._stored)
            with self._changed:
                self._changed.wait(_AGAIN_SECONDS)


class RogueNode(handover_pb2_grpc.HandoverServicer):
    """A prefill node with random answers. Thread rule: gRPC's threads, one lock around the random
    generator."""

    def __init__(
        self,
        name: str,
        rng: random.Random,
        layout: CacheLayout,
        wait_seconds: float,
        listing: Listing,
    ) -> None:
        """Set up a rogue. name: the node's name; the decode node refuses a name in use.
        wait_seconds: its reported prefill wait. listing: the cached prefixes it claims."""
        self._name = name
        self._rng = random.Random(rng.getrandbits(32))
        self._wait_seconds = wait_seconds
        self._listing = listing
        self._memory = np.zeros(SLABS * layout.slab_bytes, dtype=np.uint8)
        self._transport = NixlTransport(name)
        self._transport.register(self._memory.ctypes.data, self._memory.size)
        self._lock = threading.Lock()
        self._drawn = {
            "connect": examples(messages(pb.ConnectResponse.DESCRIPTOR), rng, 30),
            "beat": examples(messages(pb.Beat.DESCRIPTOR), rng, 30),
            "say": examples(messages(pb.SenderMessage.DESCRIPTOR), rng, 200),
            "usable": examples(messages(pb.UsableBatch.DESCRIPTOR), rng, 30),
        }
        self.connects = 0
        self.opened = Counter[str]()
        """Number of transfers opened at this node, by the kind of their first message."""

    def Connect(self, request: pb.ConnectRequest, context: Any) -> pb.ConnectResponse:
        with self._lock:
            self.connects += 1
            rng = self._rng
            if rng.random() < 0.2:
                return rng.choice(self._drawn["connect"])
            is_right = rng.random() < 0.7
            metadata = self._transport.metadata()
            if not is_right:
                metadata = damaged(metadata, rng)
            node = pb.Node(
                name=self._name,
                epoch=rng.randbytes(16),
                transport="nixl",
                transport_metadata=metadata,
                transport_checksum=metadata_checksum(metadata),
                slabs=SLABS if is_right else rng.choice((0, SLABS, 2**40)),
                process=pb.Process(boot_id="", pid=rng.choice((0, 1, 2**31))),
            )
            lease = 1.0 if is_right else rng.choice(_ODD_LEASES)
            connected = pb.Connected(node=node, connection_id=self._name, lease_seconds=lease)
            return pb.ConnectResponse(connected=connected)

    def Heartbeat(self, renewals: Iterator[pb.Renewal], context: Any) -> Iterator[pb.Beat]:
        with self._lock:
            beats = self._rng.choice(_BEATS)
        load = pb.Load(
            wait_seconds=self._wait_seconds,
            others_wait_seconds=self._wait_seconds,
            fixed_seconds=0.01,
            token_seconds=0.01,
        )
        for sequence in range(1, beats):
            with self._lock:
                odd = self._rng.random() < 0.1
                beat = self._rng.choice(self._drawn["beat"])
            yield beat if odd else pb.Beat(sequence=sequence, received=sequence - 1, load=load)
            time.sleep(0.1)

    def Usable(self, request: pb.UsableRequest, context: Any) -> Iterator[pb.UsableBatch]:
        for batch in self._listing.batches(context.is_active):
            yield batch
            with self._lock:
                odd = self._rng.random() < 0.05
                drawn = self._rng.choice(self._drawn["usable"])
            if odd:
                yield drawn

    def Transfer(self, said: Iterator[pb.ReceiverBatch], context: Any) -> Iterator[pb.SenderBatch]:
        for batch in said:
            for message in batch.messages:
                if message.WhichOneof("message") in ("reserve", "fetch"):
                    yield from self._talk(message)
            with self._lock:
                leaves = self._rng.random() < 0.1
            if leaves:
                return

    def _talk(self, opening: pb.ReceiverMessage) -> Iterator[pb.SenderBatch]:
        """Yield this node's messages for a transfer, chosen at random. opening: the transfer's
        first message."""
        with self._lock:
            self.opened[str(opening.WhichOneof("message"))] += 1
            script = self._rng.choices(self._drawn["say"], k=4)
            accepts, is_ready = self._rng.random() < 0.7, self._rng.random() < 0.5
        if is_ready and opening.HasField("fetch"):
            held = pb.Held(generation=opening.fetch.generation)
            script.insert(0, pb.SenderMessage(held=held))
        if accepts:
            script.insert(0, pb.SenderMessage(accepted=pb.Accepted()))
        for drawn in script:
            message = pb.SenderMessage()
            message.CopyFrom(drawn)
            # A message for a room not open would be dropped unread.
            message.room = opening.room
            yield pb.SenderBatch(messages=[message])
            time.sleep(0.05)

    def close(self) -> None:
        self._transport.close()

    def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        return pb.AbortResponse(drain=self._rng.choice((0, 1, 2, 77)))


def rogue_prefill(attempt: Attempt) -> None:
    layout, listing = embedded_layout(), Listing()
    rogues = (
        RogueNode("rogue-0", attempt.rng, layout, 0.0, Listing()),
        RogueNode("rogue-1", attempt.rng, layout, _WAIT_SECONDS, listing),
    )
    servers = [_served(rogue) for rogue in rogues]
    targets = ",".join(f"127.0.0.1:{port}" for _, port in servers)
    by_cost = ("--route", "cost", "--local-prefill-tokens", "0")
    flags = (*attempt.world.flags, "--prefill", targets, *by_cost)
    victim = Node("decode", *flags).wait_ready()
    question = attempt.world.right[-1]
    try:
        for number, _ in enumerate(attempt.rounds()):
            for ask in range(_ASKS):
                if victim.exit_status is not None:
                    return
                salt = f"{number}/{ask}".encode()
                listing.hold(question.prompt, salt)
                attempt.tally.note(_wait_until_met(victim))
                answer = asked(victim, question.prompt, salt).result()
                attempt.tally.note(f"answered, prefilled {answer.usage.prefilled_on}")
                if answer.token_ids != question.tokens:
                    attempt.tally.finding(f"another answer with a rogue prefill node: {salt!r}")
        victim.assert_at_rest(60.0)
    except Exception as error:
        attempt.tally.finding(f"with a rogue prefill node: {error}"[:500])
    finally:
        connects = sum(rogue.connects for rogue in rogues)
        opened = rogues[0].opened + rogues[1].opened
        attempt.tally.note(f"{connects} connects, {dict(opened)} opened")
        if victim.exit_status is not None:
            last = " | ".join(victim.last_words[-2:])
            attempt.tally.finding(f"the decode node ended with {victim.exit_status}: {last}")
        victim.put_down()
        for server, _ in servers:
            server.stop(0).wait()
        for rogue in rogues:
            rogue.close()


def _served(rogue: RogueNode) -> tuple[grpc.Server, int]:
    """Start a gRPC server for the rogue. Returns the server and its port."""
    server = grpc.server(ThreadPoolExecutor(32))
    handover_pb2_grpc.add_HandoverServicer_to_server(rogue, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def _wait_until_met(victim: Node) -> str:
    """Wait until the decode node `victim` is connected to its prefill nodes and knows listed
    prefixes, so it fetches them. A rogue's answers may prevent it. Returns "met" or "not met"."""
    ends = time.monotonic() + _MEETING_SECONDS
    while time.monotonic() < ends:
        nodes = victim.stats().prefill_nodes
        met = [node.state == inference_pb2.PREFILL_NODE_STATE_CONNECTED for node in nodes]
        if all(met) and any(node.usable_prefixes for node in nodes):
            return "met"
        time.sleep(0.02)
    return "not met"
