"""A prefill node that breaks the rules, at a decode node of its own: untrue identities, odd status,
rooms that hang up; the decode node's clients get the right tokens."""

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from scripts.attack.attack import Attempt
from scripts.attack.attacks.rogue_receiver import damaged
from scripts.attack.drawing import examples, messages
from tasuki.cli.embedded import embedded_model
from tasuki.engine.build import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc, inference_pb2
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.node_identity import metadata_checksum
from tasuki.transfer.transports.nixl.transport import NixlTransport
from tests.harness.daemons import Node, asked
from tests.harness.rogue_receiver import SLABS

_BEATS = 8
_ASKS = 4
_MEETING_SECONDS = 3.0
_ODD_LEASES = (0.0, -1.0, 0.2, 1e30, float("nan"))


class RogueNode(handover_pb2_grpc.HandoverServicer):
    """Every answer is drawn. Thread rule: gRPC's threads, one lock around the drawing."""

    def __init__(self, rng: random.Random, layout: CacheLayout) -> None:
        self._rng = rng
        self._memory = np.zeros(SLABS * layout.slab_bytes, dtype=np.uint8)
        self._transport = NixlTransport("rogue")
        self._transport.register(self._memory.ctypes.data, self._memory.size)
        self._lock = threading.Lock()
        self._drawn = {
            "connect": examples(messages(pb.ConnectResponse.DESCRIPTOR), rng, 30),
            "beat": examples(messages(pb.Beat.DESCRIPTOR), rng, 30),
            "say": examples(messages(pb.SenderMessage.DESCRIPTOR), rng, 200),
        }
        self.connects = self.rooms = 0

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
                name="rogue",
                epoch=rng.randbytes(16),
                transport="nixl",
                transport_metadata=metadata,
                transport_checksum=metadata_checksum(metadata),
                slabs=SLABS if is_right else rng.choice((0, SLABS, 2**40)),
                process=pb.Process(boot_id="", pid=rng.choice((0, 1, 2**31))),
            )
            lease = 1.0 if is_right else rng.choice(_ODD_LEASES)
            connected = pb.Connected(node=node, connection_id="rogue", lease_seconds=lease)
            return pb.ConnectResponse(connected=connected)

    def Heartbeat(self, renewals: Iterator[pb.Renewal], context: Any) -> Iterator[pb.Beat]:
        for sequence in range(1, _BEATS):
            with self._lock:
                odd = self._rng.random() < 0.2
                beat = self._rng.choice(self._drawn["beat"])
            yield beat if odd else pb.Beat(sequence=sequence)
            time.sleep(0.1)

    def Transfer(
        self, said: Iterator[pb.ReceiverMessage], context: Any
    ) -> Iterator[pb.SenderMessage]:
        self.rooms += 1
        next(said, None)
        with self._lock:
            script = self._rng.choices(self._drawn["say"], k=4)
            accepts = self._rng.random() < 0.7
        if accepts:
            yield pb.SenderMessage(accepted=pb.Accepted())
        for message in script:
            yield message
            time.sleep(0.05)

    def close(self) -> None:
        self._transport.close()

    def Abort(self, request: pb.AbortRequest, context: Any) -> pb.AbortResponse:
        return pb.AbortResponse(drain=self._rng.choice((0, 1, 2, 77)))


def rogue_prefill(attempt: Attempt) -> None:
    config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=16)
    rogue = RogueNode(attempt.rng, build_parts(config).layout)
    server = grpc.server(ThreadPoolExecutor(32))
    handover_pb2_grpc.add_HandoverServicer_to_server(rogue, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    flags = (*attempt.world.flags, "--prefill", f"127.0.0.1:{port}")
    victim = Node("decode", *flags).wait_ready()
    question = attempt.world.right[-1]
    try:
        for number, _ in enumerate(attempt.rounds()):
            for ask in range(_ASKS):
                if victim.exit_status is not None:
                    return
                _wait_until_met(victim)
                salt = f"{number}/{ask}".encode()
                answer = asked(victim, question.prompt, salt).result()
                attempt.tally.note(f"answered, prefilled {answer.usage.prefilled_on}")
                if answer.token_ids != question.tokens:
                    attempt.tally.finding(f"another answer with a rogue prefill node: {salt!r}")
        victim.assert_at_rest(60.0)
    except Exception as error:
        attempt.tally.finding(f"with a rogue prefill node: {error}"[:500])
    finally:
        attempt.tally.note(f"{rogue.connects} connects, {rogue.rooms} rooms")
        if victim.exit_status is not None:
            last = " | ".join(victim.last_words[-2:])
            attempt.tally.finding(f"the decode node ended with {victim.exit_status}: {last}")
        victim.put_down()
        server.stop(0).wait()
        rogue.close()


def _wait_until_met(victim: Node) -> None:
    """For a while: an answer of the rogue may keep the two apart."""
    ends = time.monotonic() + _MEETING_SECONDS
    while time.monotonic() < ends:
        (node,) = victim.stats().prefill_nodes
        if node.state == inference_pb2.PREFILL_NODE_STATE_CONNECTED:
            return
        time.sleep(0.02)
