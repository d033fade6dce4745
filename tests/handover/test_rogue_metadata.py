"""Forged transport metadata sent to real daemons of both roles. They answer with typed statuses,
survive, and serve the next honest peer. UCX aborts a process that reads some of it."""

import json
import random
import re
import secrets
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace

import grpc
import numpy as np
import pytest

from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc, inference_pb2
from tasuki.transfer.transports.nixl.peer_metadata import NixlAddress
from tasuki.transfer.transports.nixl.transport import NixlTransport
from tests.harness.daemons import Node, asked, flags, fleet, questions
from tests.harness.rogue_receiver import SLABS, contract_of, node_of
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = needs_nixl

MUTATIONS = 142
SEED = 20261122
ABORTING = (0x28, 0x2F)
"""Values of the byte with UCX's address version that abort the reader."""


def version_of_address(blob: bytes) -> int:
    """Return the begin of UCX's worker address; its first byte has the version in one nibble."""
    return blob.index(b"UCX|") + 13


def flipped(address: NixlAddress, value: int) -> NixlAddress:
    blob, at = address.blob, version_of_address(address.blob)
    assert blob[at] == 0x20, "UCX writes addresses in another way: find its version's place"
    return replace(address, blob=blob[:at] + bytes([value]) + blob[at + 1 :])


class Forger:
    """Metadata of unknown agents, each with its own name. A name already loaded would protect a
    receiver that gets it again."""

    def __init__(self) -> None:
        self._memory = np.zeros(SLABS << 20, dtype=np.uint8)
        self._transport = NixlTransport("forger")
        self._transport.register(self._memory.ctypes.data, self._memory.size)
        self._honest = NixlAddress.unpack(self._transport.metadata())

    def address(self) -> NixlAddress:
        name = self._transport._agent.name.encode()
        fresh = b"forger-" + secrets.token_hex(16).encode()
        assert len(fresh) == len(name) and name in self._honest.blob
        return replace(self._honest, blob=self._honest.blob.replace(name, fresh))

    def close(self) -> None:
        self._transport.close()


@pytest.fixture(scope="module")
def forger() -> Iterator[Forger]:
    made = Forger()
    yield made
    made.close()


class Connecting:
    """Connects to a prefill node by hand."""

    def __init__(self, prefill: Node) -> None:
        self._channel = grpc.insecure_channel(prefill.address)
        self._stub = handover_pb2_grpc.HandoverStub(self._channel)
        self.contract = contract_of(self._stub)

    def differences(self, contract: dict[str, str]) -> list[pb.Difference]:
        """Return the differences for which a contract is rejected."""
        request = pb.ConnectRequest(node=pb.Node(transport="nixl"), contract=contract)
        return list(self._stub.Connect(request, timeout=HANG_SECONDS).refused.differences)

    def told(self, node: pb.Node) -> grpc.StatusCode:
        return self.answer(node)[0]

    def answer(self, node: pb.Node) -> tuple[grpc.StatusCode, str]:
        """Return the status and text of its connect. Ask again if there were too many tries
        lately."""
        request = pb.ConnectRequest(node=node, contract=self.contract, lease_seconds=1.0)
        while True:
            try:
                answer = self._stub.Connect(request, timeout=HANG_SECONDS)
            except grpc.RpcError as error:
                if "connect again" not in error.details():
                    return error.code(), error.details()
                continue
            assert answer.WhichOneof("result") == "connected", answer
            return grpc.StatusCode.OK, ""

    def close(self) -> None:
        self._channel.close()


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    with fleet() as start:
        yield (node := start("prefill", *flags(arena_mib=16), "--transport", "nixl"))
        node.assert_at_rest()


@pytest.fixture
def connecting(prefill: Node) -> Iterator[Connecting]:
    made = Connecting(prefill)
    yield made
    made.close()


def test_addresses_that_abort_their_reader_leave_a_prefill_node_alive(
    prefill: Node, connecting: Connecting, forger: Forger
) -> None:
    for value in ABORTING:
        code, details = connecting.answer(node_of(flipped(forger.address(), value).pack()))
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "SIGABRT" in details, "a later UCX does not abort: find what kills it"
    assert connecting.told(node_of(forger.address().pack())) is grpc.StatusCode.OK
    assert prefill.stats().integrity == "ok"


def test_metadata_that_were_damaged_on_their_way_are_not_tried(
    connecting: Connecting, forger: Forger
) -> None:
    node = node_of(forger.address().pack())
    node.transport_metadata = flipped(forger.address(), ABORTING[0]).pack()
    code, details = connecting.answer(node)
    assert code is grpc.StatusCode.FAILED_PRECONDITION and "checksum" in details


@pytest.mark.parametrize("library", ["nixl", "ucx"])
def test_another_version_of_a_library_is_refused_by_its_name(
    connecting: Connecting, forger: Forger, library: str
) -> None:
    ours = connecting.contract[library]
    assert re.fullmatch(r"\d+\.\d+\.\d+", ours)
    refused = connecting.differences({**connecting.contract, library: "9.9.9"})
    assert [(item.field, item.ours, item.theirs) for item in refused] == [(library, ours, "9.9.9")]


def test_a_contract_without_end_is_neither_compared_nor_told_back(connecting: Connecting) -> None:
    endless = {f"field {n}": "x" for n in range(999)}
    with pytest.raises(grpc.RpcError) as raised:
        connecting.differences(endless)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    forged = connecting.differences({**connecting.contract, "a\nb": "y\n" * 9999})
    assert len(forged) == 1 and forged[0].field.isprintable()
    assert len(forged[0].theirs) <= 4096 and forged[0].theirs.isprintable()


def mutated(address: NixlAddress, rng: random.Random) -> bytes:
    """Return metadata with one or a few errors."""
    packed = address.pack()
    line, _, blob = packed.partition(b"\n")
    kind = rng.randrange(6)
    if kind == 0:
        return flipped(address, rng.randrange(256)).pack()
    if kind == 1:
        changed = bytearray(blob)
        for _ in range(rng.choice((1, 1, 2, 8, 32))):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return line + b"\n" + bytes(changed)
    if kind == 2:
        return line + b"\n" + blob[: rng.randrange(len(blob))]
    if kind == 3:
        at = rng.randrange(len(blob))
        return line + b"\n" + blob[:at] + rng.randbytes(rng.randrange(1, 64)) + blob[at:]
    if kind == 4:
        field = rng.choice(("address", "size", "device", "memory", "ports"))
        wrong = rng.choice((-1, 2**64, 2**63, 1e999, None, "x", [[]], {"a": 1}, "DRAM", [1] * 999))
        return json.dumps({**json.loads(line), field: wrong}).encode() + b"\n" + blob
    return rng.choice((b"[" * 5000, b"\xff" * 99, b"", b"\n", rng.randbytes(400), line))


def test_mutated_metadata_kill_nobody_and_are_refused_by_a_type(
    prefill: Node, connecting: Connecting, forger: Forger
) -> None:
    rng = random.Random(SEED)
    codes = [connecting.told(node_of(mutated(forger.address(), rng))) for _ in range(MUTATIONS)]
    refused = codes.count(grpc.StatusCode.FAILED_PRECONDITION)
    assert refused + codes.count(grpc.StatusCode.OK) == MUTATIONS, set(codes)
    assert refused > MUTATIONS // 2
    assert connecting.told(node_of(forger.address().pack())) is grpc.StatusCode.OK
    assert prefill.stats().integrity == "ok" and prefill.running


class RogueSender(handover_pb2_grpc.HandoverServicer):
    """A prefill node that answers Connect with chosen metadata, in turn."""

    def __init__(self, metadata: list[bytes]) -> None:
        self._metadata = metadata
        self.asked = 0

    def Connect(self, request: pb.ConnectRequest, context: object) -> pb.ConnectResponse:
        metadata = self._metadata[min(self.asked, len(self._metadata) - 1)]
        self.asked += 1
        connected = pb.Connected(
            node=node_of(metadata),
            connection_id=f"rogue-{self.asked}",
            lease_seconds=0.2,
        )
        return pb.ConnectResponse(connected=connected)


@contextmanager
def rogue_sender(metadata: list[bytes]) -> Iterator[tuple[RogueSender, str]]:
    server = grpc.server(futures.ThreadPoolExecutor(4))
    rogue = RogueSender(metadata)
    handover_pb2_grpc.add_HandoverServicer_to_server(rogue, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield rogue, f"127.0.0.1:{port}"
    finally:
        server.stop(0)


def test_a_rogue_prefill_nodes_addresses_leave_a_decode_node_alive(forger: Forger) -> None:
    """The decode node continues with an honest prefill node."""
    rng = random.Random(SEED)
    forged = [flipped(forger.address(), value).pack() for value in ABORTING]
    forged += [mutated(forger.address(), rng) for _ in range(3)]
    (question,) = questions((200,))
    nixl = (*flags(), "--transport", "nixl")
    with rogue_sender(forged) as (rogue, address), fleet() as start:
        honest = start("prefill", *nixl)
        decode = start("decode", *nixl, "--prefill", f"{address},{honest.address}")
        until(lambda: rogue.asked > len(ABORTING), "not asked again after it was refused")
        connected = inference_pb2.PREFILL_NODE_STATE_CONNECTED

        def state() -> int:
            (node,) = (
                node for node in decode.stats().prefill_nodes if node.address == honest.address
            )
            return node.state

        until(lambda: state() == connected, decode.story)
        answer = asked(decode, question.prompt, b"").result()
        assert answer.token_ids == question.tokens
        assert answer.usage.prefilled_on == "prefill"
        decode.assert_at_rest()
