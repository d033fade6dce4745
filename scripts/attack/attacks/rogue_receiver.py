"""Attack by a decode node breaking the rules, on the prefill node. It sends broken transport
metadata under new names, odd transfer requests and destinations, and aborts of other peers'
transfers."""

import contextlib
import random
import secrets
import threading
import time
from collections.abc import Iterator
from functools import partial

import grpc
import numpy as np

from scripts.attack.attack import Attempt
from scripts.attack.drawing import examples, messages
from scripts.attack.grpc_call import judge
from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.model.named_checkpoints import embedded_model
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.transports.nixl.transport import NixlTransport
from tests.harness.daemons import Node
from tests.harness.rogue_receiver import SLABS, Rogue

_TRANSFER_SECONDS = 10.0
_GENERATION = 7


class Stranger(Rogue):
    """A rogue decode node. It may lose its connection, and may name other peers' transfers. Its own
    transfer ids are random like every receiver's, because a node accepts an id once at a time."""

    def __init__(self, prefill: Node, layout: CacheLayout) -> None:
        super().__init__(prefill, layout)
        self._transfers = secrets.randbits(62)

    def _beat(self) -> None:
        with contextlib.suppress(grpc.RpcError, AssertionError):
            super()._beat()

    def is_connected(self) -> bool:
        """Return True if the prefill node would accept a transfer from this stranger. After a loss
        of the connection its heartbeat ends one interval later."""
        try:
            list(self.stub.Transfer(iter([self.batch()]), timeout=_TRANSFER_SECONDS))
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                return False
            raise
        return True

    def abort(self, transfer_id: int) -> None:
        """Abort a transfer under this stranger's connection, even another peer's transfer."""
        request = pb.AbortRequest(
            room=transfer_id, generation=_GENERATION, connection_id=self._connection
        )
        self.stub.Abort(request, timeout=_TRANSFER_SECONDS)


def strangers(attempt: Attempt, count: int) -> Iterator[list[Stranger]]:
    """Yield `count` rogue decode nodes, new in each round, because an attack may cost them their
    connection. A call to an ended node ends the rounds; the world reports the node's end itself."""
    layout = embedded_layout()
    for _ in attempt.rounds():
        found = [Stranger(attempt.world.prefill, layout) for _ in range(count)]
        try:
            yield found
        finally:
            for stranger in found:
                stranger.close()


def embedded_layout() -> CacheLayout:
    """Return the cache layout of the attacked nodes."""
    config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=16)
    return build_parts(config).layout


def judge_call(error: grpc.RpcError, call: str, attempt: Attempt) -> None:
    """Record a failed call, and its finding if its status is a server's fault. Raises the error
    again if the node is gone."""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        raise error
    judge(error.code(), error.details() or "", call, attempt.tally)


def rogue_receiver(attempt: Attempt) -> None:
    try:
        for victim, other in strangers(attempt, 2):
            _foreign_abort(attempt, victim, other)
            _metadata(attempt, victim)
            _transfers(attempt, victim)
    except grpc.RpcError as error:
        attempt.tally.finding(f"the prefill node answers no more: {error.code().name}")


def _metadata(attempt: Attempt, rogue: Rogue) -> None:
    for _ in range(4):
        # Use a fresh name: NIXL rejects unknown metadata only under an unknown name.
        fresh = NixlTransport("rogue")
        memory = np.zeros(1 << 16, dtype=np.uint8)
        fresh.register(memory.ctypes.data, memory.size)
        try:
            reply = rogue.connect(
                damaged(fresh.metadata(), attempt.rng), attempt.rng.choice((SLABS, 2**40))
            )
            attempt.tally.note(reply.WhichOneof("result") or "nothing")
        except grpc.RpcError as error:
            judge_call(error, "Connect", attempt)
        finally:
            fresh.close()


def damaged(metadata: bytes, rng: random.Random) -> bytes:
    """Return the transport metadata with one random place changed, usually in the part read by
    UCX."""
    found = bytearray(metadata)
    mark = metadata.find(b"UCX|")
    match rng.randrange(6):
        case 0 if mark >= 0:
            found[mark + 13] ^= 1 << rng.randrange(8)
        case 1:
            del found[rng.randrange(len(found)) :]
        case 2:
            found += bytes(rng.randrange(256) for _ in range(40))
        case 3:
            found = bytearray(b'{"address": %d, "size": 1e400}\n' % rng.choice((-1, 2**64)))
        case _:
            for _ in range(rng.choice((1, 1, 4))):
                found[rng.randrange(max(mark, 0), len(found))] = rng.randrange(256)
    return bytes(found)


def _transfers(attempt: Attempt, rogue: Rogue) -> None:
    transfer_requests = examples(messages(pb.Ticket.DESCRIPTOR), attempt.rng, 6)
    answers = examples(messages(pb.ReceiverMessage.DESCRIPTOR), attempt.rng, 12)
    for answer in answers:
        # Keep it in its own room: a message for another room would be dropped unread.
        answer.ClearField("room")
    reserves = []
    for transfer_request in transfer_requests:
        reserve = rogue.reserve()
        odd = {
            field.name: value
            for field, value in transfer_request.ListFields()
            if field.name != "room"
        }
        odd.get("sampling", pb.Sampling()).max_new_tokens = 1
        for name in attempt.rng.sample(sorted(odd), min(2, len(odd))):
            reserve.reserve.ticket.ClearField(name)
            reserve.reserve.ticket.MergeFrom(pb.Ticket(**{name: odd[name]}))
        reserves.append(reserve)
    talks = [
        partial(_talk, attempt, rogue, [reserve, *attempt.rng.sample(answers, 2)])
        for reserve in reserves
    ]
    attempt.at_once(6, talks)


def _talk(attempt: Attempt, rogue: Rogue, script: list[pb.ReceiverMessage]) -> str:
    """Send the messages of `script` on a transfer stream, then hang up. Returns the kind of the
    last answer, or the error's status."""
    last = ""

    def requests() -> Iterator[pb.ReceiverMessage]:
        for message in script:
            yield message
            time.sleep(0.05)
        yield pb.ReceiverMessage(hang_up=pb.HangUp())

    try:
        for message in rogue.transfers(requests(), _TRANSFER_SECONDS):
            last = message.WhichOneof("message") or "nothing"
    except grpc.RpcError as error:
        judge_call(error, f"Transfer {script}"[:500], attempt)
        return error.code().name
    attempt.tally.note(f"ended by {last}")
    return last


def _foreign_abort(attempt: Attempt, victim: Stranger, stranger: Stranger) -> None:
    """Let `stranger` abort a transfer of `victim` by its id, and check the transfer's end."""
    reserve = victim.reserve()
    grant = pb.Grant(generation=_GENERATION, pages=[0, 1, 2], slot=3)
    received: list[pb.SenderMessage] = []
    left = threading.Event()

    def requests() -> Iterator[pb.ReceiverMessage]:
        yield reserve
        deadline = time.monotonic() + _TRANSFER_SECONDS
        while not _has_kind(received, "accepted") and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            stranger.abort(reserve.reserve.ticket.room)
            attempt.tally.note("foreign abort answered")
        except grpc.RpcError as error:
            judge(error.code(), error.details() or "", "a foreign Abort", attempt.tally)
        yield pb.ReceiverMessage(grant=grant)
        while not victim.is_over(received) and time.monotonic() < deadline:
            time.sleep(0.01)
        if time.monotonic() >= deadline:
            left.set()

    try:
        for message in victim.transfers(requests(), 2 * _TRANSFER_SECONDS):
            received.append(message)
    except grpc.RpcError as error:
        judge(error.code(), error.details() or "", "a room that a stranger aborts", attempt.tally)
    if _has_kind(received, "done"):
        attempt.tally.note("done all the same")
    elif left.is_set():
        # The end of its own stream aborts a room. A stranger's Abort would end it at once.
        attempt.tally.note("left by its receiver, on a busy machine")
    elif not (_has_kind(received, "accepted", "aborted") and victim.is_connected()):
        # An Abort ends a room without a reason of the node's own. Severing an earlier rogue's
        # grants breaks every connection, and this one too.
        attempt.tally.note("cut off or not accepted")
    else:
        kinds = [message.WhichOneof("message") for message in received]
        attempt.tally.finding(f"a stranger's Abort ended a room: {kinds}, {received[-1]}")


def _has_kind(messages_: list[pb.SenderMessage], *kinds: str) -> bool:
    """Return True if the messages include each of the given kinds."""
    return {*kinds} <= {message.WhichOneof("message") for message in messages_}
