"""Choice of a node's transport by the name in its settings: one, or several as one.

Only the chosen ones are imported: peer_copy needs Triton, NIXL its wheel. `RoutedTransport` is
several transports as one: each peer is reached by the first member able to reach it. It owns its
members and the member of each endpoint, and knows no details of them. Thread rule: base.py's.
Invariant: a peer is written to by one member for as long as its endpoint lives.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from tasuki.pycache._cpp_cache import AskedDigest, Bell
from tasuki.transfer.chunks.descriptors import Segments, TransferUnits
from tasuki.transfer.errors import TransportError
from tasuki.transfer.transports.nixl.transport import NixlTransport, nixl_memory
from tasuki.utils.signatures import Clock, Work

from .base import (
    Endpoint,
    HeldTransfer,
    HeldWrite,
    Holding,
    RankMemory,
    Region,
    Transfer,
    TransferState,
    Transport,
    Write,
)

_LARGEST_METADATA = 1 << 20
_QUIET_SECONDS = 0.005
"""Pause in seconds between polls of members not used lately; the first event of such a member may
be late by this. Each poll costs processor time and the interpreter's lock, and users of other
members wait for the lock."""
_USED_SECONDS = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _RoutedEndpoint(Endpoint):
    name: str
    member: Transport
    endpoint: Endpoint

    @property
    def remote_size(self) -> int:
        return self.endpoint.remote_size


@dataclass(frozen=True)
class _RoutedTransfer(Transfer):
    member: Transport
    transfer: Transfer

    @property
    def ended_at(self) -> float | None:
        return self.transfer.ended_at


@dataclass(frozen=True)
class _RoutedHeld(_RoutedTransfer, HeldTransfer):
    transfer: HeldTransfer

    @property
    def posted_at(self) -> float | None:
        return self.transfer.posted_at

    @property
    def digest(self) -> AskedDigest:
        return self.transfer.digest


class RoutedTransport(Transport):
    def __init__(self, members: Mapping[str, Transport], clock: Clock = time.monotonic) -> None:
        """members: transports by name, the preferred first. REQUIRES: not empty; both nodes use the
        same names for the same transports."""
        self._members = dict(members)
        self._clock = clock
        self._asked = dict(members)
        """Member transports to be polled, because their notifications ring no bell."""
        self._used: dict[str, float] = {}
        """Time when each member transport last connected, posted or returned a notification."""

    @property
    def settle_seconds(self) -> float:
        return max(member.settle_seconds for member in self._members.values())

    @property
    def retry_seconds(self) -> float:
        return max(member.retry_seconds for member in self._members.values())

    @property
    def poll_seconds(self) -> float:
        """Return the pause in seconds between polls of members without a bell; longer if none of
        them was used lately."""
        now = self._clock()
        seconds = _QUIET_SECONDS
        for name, member in self._asked.items():
            if now - self._used.get(name, -math.inf) < _USED_SECONDS:
                seconds = min(seconds, member.poll_seconds)
        return seconds

    def ring_at_ends(self, bell: Bell) -> None:
        for member in self._members.values():
            member.ring_at_ends(bell)

    def rings(self, endpoint: Endpoint) -> bool:
        assert isinstance(endpoint, _RoutedEndpoint)
        return endpoint.member.rings(endpoint.endpoint)

    def ring_at_arrivals(self, bell: Bell) -> bool:
        rings = {name: member.ring_at_arrivals(bell) for name, member in self._members.items()}
        self._asked = {name: self._members[name] for name in rings if not rings[name]}
        return not self._asked

    @property
    def libraries(self) -> Mapping[str, str]:
        versions: dict[str, str] = {}
        for member in self._members.values():
            versions.update(member.libraries)
        return versions

    def expect_peers(self) -> None:
        for member in self._members.values():
            member.expect_peers()

    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        for member in self._members.values():
            member.register(address, size, units)
        return Region(address, size)

    def register_ranks(self, arenas: Sequence[RankMemory], size: int, stride: int) -> Region:
        """Register with the member transports supporting several ranks; close and remove the
        others. Raises TransportError without any."""
        reasons = []
        for name, member in [*self._members.items()]:
            try:
                region = member.register_ranks(arenas, size, stride)
            except TransportError as error:
                reasons.append(f"{name}: {error}")
                member.close()
                del self._members[name]
                self._asked.pop(name, None)
        if not self._members:
            raise TransportError("; ".join(reasons))
        return region

    def metadata(self) -> bytes:
        parts = {name: member.metadata().hex() for name, member in self._members.items()}
        return json.dumps(parts).encode()

    def connect(self, metadata: bytes) -> Endpoint:
        try:
            if len(metadata) > _LARGEST_METADATA:
                raise ValueError(f"{len(metadata)} bytes are too many")
            parts = {str(k): bytes.fromhex(v) for k, v in json.loads(metadata).items()}
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise TransportError(f"the peer's metadata cannot be read: {error!r}") from error
        reasons = []
        for name, member in self._members.items():
            try:
                endpoint = _connected(member, name, parts)
            except TransportError as error:
                reasons.append(f"not by {name}: {error}")
                continue
            log.info("a peer is written to by %s%s", name, "".join(f" ({r})" for r in reasons))
            self._used[name] = self._clock()
            return _RoutedEndpoint(name, member, endpoint)
        raise TransportError("; ".join(reasons))

    def post(self, endpoint: Endpoint, segments: Segments, notification: bytes) -> Transfer:
        assert isinstance(endpoint, _RoutedEndpoint)
        self._used[endpoint.name] = self._clock()
        transfer = endpoint.member.post(endpoint.endpoint, segments, notification)
        return _RoutedTransfer(endpoint.member, transfer)

    def post_all(self, endpoint: Endpoint, writes: Sequence[Write]) -> list[Transfer | Exception]:
        assert isinstance(endpoint, _RoutedEndpoint)
        self._used[endpoint.name] = self._clock()
        posted = endpoint.member.post_all(endpoint.endpoint, writes)
        return [
            each if isinstance(each, Exception) else _RoutedTransfer(endpoint.member, each)
            for each in posted
        ]

    def holds(self, endpoint: Endpoint) -> bool:
        assert isinstance(endpoint, _RoutedEndpoint)
        return endpoint.member.holds(endpoint.endpoint)

    def hold(
        self, endpoint: Endpoint, writes: Sequence[HeldWrite], holding: Holding
    ) -> list[HeldTransfer | Exception]:
        assert isinstance(endpoint, _RoutedEndpoint)
        self._used[endpoint.name] = self._clock()
        held = endpoint.member.hold(endpoint.endpoint, writes, holding)
        return [
            each if isinstance(each, Exception) else _RoutedHeld(endpoint.member, each)
            for each in held
        ]

    def cancel(self, transfer: HeldTransfer) -> None:
        assert isinstance(transfer, _RoutedHeld)
        transfer.member.cancel(transfer.transfer)

    def poll(self, transfer: Transfer) -> TransferState:
        assert isinstance(transfer, _RoutedTransfer)
        return transfer.member.poll(transfer.transfer)

    def release(self, transfer: Transfer) -> None:
        assert isinstance(transfer, _RoutedTransfer)
        transfer.member.release(transfer.transfer)

    def notifications(self) -> list[bytes]:
        arrived: list[bytes] = []
        for name, member in self._members.items():
            brought = member.notifications()
            if brought:
                self._used[name] = self._clock()
            arrived += brought
        return arrived

    def sever(self) -> None:
        self._all(lambda member: member.sever())

    def sever_dead(self) -> int:
        return sum(member.sever_dead() for member in self._members.values())

    def unread(self) -> int:
        return sum(member.unread() for member in self._members.values())

    def disconnect(self, endpoint: Endpoint) -> None:
        assert isinstance(endpoint, _RoutedEndpoint)
        endpoint.member.disconnect(endpoint.endpoint)

    def close(self) -> None:
        self._all(lambda member: member.close())

    def _all(self, act: Callable[[Transport], None]) -> None:
        """Call `act` for each member transport. Raises TransportError afterwards if any failed."""
        failures = []
        for name, member in self._members.items():
            try:
                act(member)
            except TransportError as error:
                failures.append(f"{name}: {error}")
        if failures:
            raise TransportError("; ".join(failures))


def _connected(member: Transport, name: str, parts: Mapping[str, bytes]) -> Endpoint:
    if name not in parts:
        raise TransportError("the peer does not offer it")
    return member.connect(parts[name])


def build_transport(kind: str, name: str, device: torch.device) -> Transport:
    """Build a node's transport. kind: one of TRANSPORTS, the same on both nodes of a pair. name:
    the node's name. device: device of the arena.

    The kind `auto` chooses for each peer: peer_copy if both nodes are on one host and their GPUs
    reach each other, else nixl. Raises TransportError if the kind cannot work here.
    """
    builders: dict[str, Work[Transport]] = {
        "peer_copy": partial(_peer_copy, device),
        "nixl": lambda: NixlTransport(name, *nixl_memory(device)),
    }
    if kind in builders:
        return _expecting(builders[kind]())
    if device.type != "cuda":
        # peer_copy copies between GPUs: on a CPU its absence is no reason to report.
        del builders["peer_copy"]
    members, reasons = {}, []
    for member, build in builders.items():
        try:
            members[member] = build()
        except TransportError as error:
            reasons.append(f"{member}: {error}")
            log.info("transport auto goes without %s: %s", member, error)
    if not members:
        raise TransportError(f"transport auto finds none: {'; '.join(reasons)}")
    return _expecting(RoutedTransport(members))


def _expecting(transport: Transport) -> Transport:
    """Return the transport, preparing for its first peers while weights are loaded."""
    try:
        transport.expect_peers()
    except TransportError:
        transport.close()
        raise
    return transport


def _peer_copy(device: torch.device) -> Transport:
    if device.type != "cuda":
        raise TransportError("the arena is in host memory")
    from tasuki.transfer.transports.nvlink.transport import PeerCopyTransport

    return PeerCopyTransport(device)
