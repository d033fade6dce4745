"""NIXL over UCX: one-sided writes over RDMA NICs, TCP and shared memory; the default transport.

Owns one NIXL agent, the registration of the arena, the endpoints and the handles of posted
transfers. Knows no layers and no transfers. Thread rule: base.py's; NIXL's agent is not
thread-safe, so every call holds one lock. The arena's units are prepared once, so a chunk is posted
as two arrays of indices.

Invariants: handles, endpoints, lists, registration and agent are released in that order and
explicitly, because an agent alive at interpreter exit crashes the process. Metadata of a peer is
used for one connection.
"""

import contextlib
import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tasuki.transfer.chunks.descriptors import Segments, Strip, TransferUnits, check_bounds
from tasuki.transfer.errors import TransportError
from tasuki.transfer.transports.base import Endpoint, Region, Transfer, TransferState, Transport

from .agent import (
    ENVIRONMENT,
    configure_environment,
    installed_package,
    new_agent,
    nixl_libraries,
    retry_bound,
)
from .inbound_sockets import InboundSockets, listening_ports
from .peer_metadata import MetadataProbe, NixlAddress

__all__ = [
    "ENVIRONMENT",
    "NixlTransport",
    "configure_environment",
    "installed_package",
    "nixl_memory",
]

_OWN = "NIXL_INIT_AGENT"


def nixl_memory(device: torch.device) -> tuple[str, int]:
    """Return NIXL's name for the device's kind of memory, and the index of the device."""
    if device.type == "cpu":
        return "DRAM", 0
    return "VRAM", torch.cuda.current_device() if device.index is None else device.index


@dataclass
class _NixlEndpoint(Endpoint):
    agent: str
    address: int
    size: int
    device: int
    memory: str
    blob: bytes = field(repr=False)
    prepared: Any = field(default=None, repr=False)
    """NIXL's prepared list of every unit of the peer's arena; None if no units were registered."""
    open: bool = True

    @property
    def remote_size(self) -> int:
        return self.size


@dataclass(eq=False)
class _NixlTransfer(Transfer):
    handle: Any = field(repr=False)
    """NIXL's handle of the write; None for a notification alone, done once it was sent."""


class NixlTransport(Transport):
    """Transport over NIXL. memory: NIXL's name of the arena's memory, DRAM or VRAM; device: the
    GPU's index, 0 for DRAM."""

    def __init__(self, name: str, memory: str = "DRAM", device: int = 0) -> None:
        """Make the NIXL agent. Raises TransportError without NIXL, or if UCX cannot start."""
        self._memory = memory
        self._device = device
        self._lock = threading.Lock()
        self._region: Region | None = None
        self._registration: Any = None
        self._units: TransferUnits | None = None
        self._prepared: Any = None
        self._endpoints: list[_NixlEndpoint] = []
        self._transfers: set[_NixlTransfer] = set()
        self._probe = MetadataProbe()
        before = listening_ports()
        # A unique name: agents of the same name, on two hosts or of two lives of one node, must not
        # be confused.
        self._agent: Any = new_agent(f"{name}-{uuid.uuid4().hex}")
        # NIXL has no call for ending peers' writes to this agent.
        self._inbound = InboundSockets(before)

    @property
    def settle_seconds(self) -> float:
        """Return the seconds measured by tests/transfer/test_settling.py. Bytes waiting on this
        node are counted by unread()."""
        return 0.1

    @property
    def retry_seconds(self) -> float:
        """Return the retry time of RDMA, in seconds. TCP retries for minutes, until sever()."""
        return max(1.0, retry_bound(os.environ["UCX_RC_TIMEOUT"], os.environ["UCX_RC_RETRY_COUNT"]))

    @property
    def libraries(self) -> Mapping[str, str]:
        package = installed_package()
        assert package is not None, "its agent was made"
        return nixl_libraries(package)

    def expect_peers(self) -> None:
        self._probe.start()

    def register(self, address: int, size: int, units: TransferUnits | None = None) -> Region:
        with self._lock:
            if self._region is not None:
                raise TransportError("NIXL: one arena a node; it is registered already")
            try:
                self._registration = self._agent.register_memory(
                    [(address, size, self._device, "arena")], self._memory
                )
            except Exception as error:
                raise TransportError(f"NIXL could not register {size} bytes: {error}") from error
            self._region = Region(address, size)
            if units is not None:
                self._units = units
                self._prepared = self._prepare(_OWN, address, size, self._device, self._memory)
        return self._region

    def _prepare(self, agent: str, address: int, size: int, device: int, memory: str) -> Any:
        """Return NIXL's list of all units of an arena, used to post by index. Raises
        TransportError."""
        rows = [
            (address + strip.offset, strip.length, device, strip.stride, strip.count)
            for strip in self._strips(size)
        ]
        try:
            return self._agent.prep_xfer_dlist(agent, np.array(rows, dtype=np.uint64), memory)
        except Exception as error:
            raise TransportError(f"NIXL could not prepare {size} bytes: {error}") from error

    def _strips(self, size: int) -> list[Strip]:
        return [] if self._units is None else self._units.strips(size)

    def metadata(self) -> bytes:
        with self._lock:
            region = self._registered()
            return NixlAddress(
                address=region.address,
                size=region.size,
                device=self._device,
                memory=self._memory,
                ports=tuple(sorted(self._inbound.ports)),
                blob=self._agent.get_agent_metadata(),
            ).pack()

    def connect(self, metadata: bytes) -> Endpoint:
        address = NixlAddress.unpack(metadata)
        # Outside the lock, because chunks of other peers move meanwhile.
        agent = self._probe.try_out(address, self._strips(address.size))
        with self._lock:
            endpoint = self._added(agent, address)
            self._endpoints.append(endpoint)
        self._inbound.add_peer(address.ports)
        return endpoint

    def _added(self, agent: str, address: NixlAddress) -> "_NixlEndpoint":
        """Add the peer's NIXL agent; return its endpoint. A TransportError leaves no new agent."""
        sharing = [other for other in self._endpoints if other.agent == agent]
        if any(other.blob != address.blob for other in sharing):
            raise TransportError(f"NIXL: another peer is connected as {agent}")
        try:
            added = self._agent.add_remote_agent(address.blob)
            # The added agent must be the one tried before.
            if added != agent.encode():
                raise TransportError(f"NIXL added {added!r}, not {agent}")
            endpoint = _NixlEndpoint(
                agent, address.address, address.size, address.device, address.memory, address.blob
            )
            if self._units is not None:
                endpoint.prepared = self._prepare(
                    agent, address.address, address.size, address.device, address.memory
                )
        except Exception as error:
            if not sharing:
                self._remove(agent)
            if isinstance(error, TransportError):
                raise
            raise TransportError(f"NIXL could not add the peer: {error}") from error
        return endpoint

    def _remove(self, agent: str) -> None:
        """Remove the peer's NIXL agent, even if it was added only in part."""
        with contextlib.suppress(Exception):
            self._agent.remove_remote_agent(agent)

    def post(self, endpoint: Endpoint, segments: Segments, notification: bytes) -> Transfer:
        assert isinstance(endpoint, _NixlEndpoint)
        with self._lock:
            region = self._registered()
            check_bounds(segments, region.size, endpoint.size)
            if not endpoint.open:
                raise TransportError(f"NIXL: the connection to {endpoint.agent} is closed")
            try:
                handle = self._start(region, endpoint, segments, notification)
            except TransportError:
                raise
            except Exception as error:
                raise TransportError(f"NIXL could not post to {endpoint.agent}: {error}") from error
            transfer = _NixlTransfer(handle)
            self._transfers.add(transfer)
        return transfer

    def _start(
        self, region: Region, endpoint: _NixlEndpoint, segments: Segments, notification: bytes
    ) -> Any:
        if len(segments) == 0:
            self._agent.send_notif(endpoint.agent, notification)
            return None
        handle = self._by_index(region, endpoint, segments, notification)
        if handle is None:
            local = self._descriptors(region.address, segments[:, 0], segments[:, 2], self._device)
            remote = self._descriptors(
                endpoint.address, segments[:, 1], segments[:, 2], endpoint.device
            )
            handle = self._agent.initialize_xfer(
                "WRITE",
                self._agent.get_xfer_descs(local, self._memory),
                self._agent.get_xfer_descs(remote, endpoint.memory),
                endpoint.agent,
                notification,
            )
        if self._agent.transfer(handle, notification) == "ERR":
            handle.release()
            raise TransportError(f"NIXL refused a transfer to {endpoint.agent}")
        return handle

    def _by_index(
        self, region: Region, endpoint: _NixlEndpoint, segments: Segments, notification: bytes
    ) -> Any:
        """Return a write of the prepared units; None if a segment is not made of whole units."""
        if self._units is None or endpoint.prepared is None:
            return None
        indices = self._units.indices(segments, region.size, endpoint.size)
        if indices is None:
            return None
        return self._agent.make_prepped_xfer(
            "WRITE", self._prepared, indices.local, endpoint.prepared, indices.remote, notification
        )

    @staticmethod
    def _descriptors(base: int, offsets: Any, lengths: Any, device: int) -> Any:
        rows = np.empty((len(offsets), 3), dtype=np.uint64)
        rows[:, 0] = offsets.astype(np.uint64) + np.uint64(base)
        rows[:, 1] = lengths
        rows[:, 2] = device
        return rows

    def poll(self, transfer: Transfer) -> TransferState:
        assert isinstance(transfer, _NixlTransfer)
        if transfer.handle is None:
            return TransferState.DONE
        with self._lock:
            try:
                state = self._agent.check_xfer_state(transfer.handle)
            except Exception as error:
                raise TransportError(f"NIXL lost a transfer: {error}") from error
        if state == "ERR":
            raise TransportError("NIXL lost a transfer")
        return TransferState.DONE if state == "DONE" else TransferState.PENDING

    def release(self, transfer: Transfer) -> None:
        assert isinstance(transfer, _NixlTransfer)
        with self._lock:
            self._release(transfer)

    def _release(self, transfer: _NixlTransfer) -> None:
        if transfer not in self._transfers:
            return
        try:
            if transfer.handle is not None:
                transfer.handle.release()
        except Exception:
            # The transfer is still under way and cannot be cancelled: keep it, and try again on
            # close.
            return
        self._transfers.discard(transfer)

    def notifications(self) -> list[bytes]:
        with self._lock:
            if self._agent is None:
                return []
            try:
                arrived = self._agent.get_new_notifs()
            except Exception as error:
                raise TransportError(f"NIXL could not read notifications: {error}") from error
        return [message for messages in arrived.values() for message in messages]

    def sever(self) -> None:
        self._inbound.shut_down()

    def sever_dead(self) -> int:
        return self._inbound.shut_down_orphans()

    def unread(self) -> int:
        return self._inbound.unread()

    def disconnect(self, endpoint: Endpoint) -> None:
        assert isinstance(endpoint, _NixlEndpoint)
        with self._lock:
            self._disconnect(endpoint)

    def _disconnect(self, endpoint: _NixlEndpoint) -> None:
        if not endpoint.open:
            return
        endpoint.open = False
        self._endpoints.remove(endpoint)
        _release_list(endpoint.prepared)
        endpoint.prepared = None
        # Two connections to one life of a peer share its agent.
        if any(other.agent == endpoint.agent for other in self._endpoints):
            return
        try:
            self._agent.remove_remote_agent(endpoint.agent)
        except Exception as error:
            raise TransportError(f"NIXL could not let go of {endpoint.agent}: {error}") from error

    def close(self) -> None:
        self._probe.close()
        with self._lock:
            if self._agent is None:
                return
            failures = []
            for transfer in list(self._transfers):
                self._release(transfer)
            for endpoint in list(self._endpoints):
                try:
                    self._disconnect(endpoint)
                except TransportError as error:
                    failures.append(str(error))
            _release_list(self._prepared)
            self._prepared = None
            try:
                if self._registration is not None:
                    self._agent.deregister_memory(self._registration)
            except Exception as error:
                failures.append(f"NIXL could not deregister the arena: {error}")
            self._transfers.clear()
            self._registration = self._region = self._agent = None
        if failures:
            raise TransportError("; ".join(failures))

    def _registered(self) -> Region:
        if self._region is None:
            raise TransportError("NIXL: register the arena first")
        return self._region


def _release_list(prepared: Any) -> None:
    if prepared is not None:
        prepared.release()
