"""NIXL over UCX: RDMA NICs, TCP and shared memory by one-sided writes; the default transport.

Owns one NIXL agent, the registration of the arena, the endpoints and the handles of posted
transfers. Knows no layers and no rooms. Thread rule: as in base; NIXL's agent is not safe for two
threads by itself, so every call holds one lock.
What pieces are made of is prepared once, so that a window is posted as two arrays of indices.
Invariants: handles, endpoints, lists, registration and agent are released in that order and
explicitly, because an agent that is alive at interpreter exit crashes the process. Metadata of a
peer is used for one connection.
"""

import importlib
import importlib.util
import json
import os
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..descriptors import Pieces, check_bounds
from ..errors import TransportError
from ..grain import Grain
from .base import Endpoint, Region, Transfer, TransferState, Transport
from .inbound_sockets import InboundSockets, listening_ports
from .rdma_retry import retry_bound

_PACKAGES = ("nixl_cu13", "nixl_cu12")
_OWN = "NIXL_INIT_AGENT"

ENVIRONMENT = {
    # No shared memory and no cma by default: with posix a receiver segfaults inside UCX when its
    # peer is killed while the two connect, with sysv connecting was seen to hang, with cma a sender
    # aborts on close after its peer was killed in mid-transfer (NIXL 1.5.1). tcp is slower on one
    # host, survives all of it, and sees a peer's death at once.
    "UCX_TLS": "cuda_copy,cuda_ipc,rc,tcp,self",
    # UCX authenticates nobody: whoever sets another interface declares it as trusted.
    "UCX_NET_DEVICES": "lo",
    # For whoever adds them: without these two, agents on one host cannot be made.
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_SYSV_ERROR_HANDLING": "y",
    "UCX_KEEPALIVE_INTERVAL": "1s",
    # UCX's own (1 s, 7) let a NIC repeat a write for half a minute; the fence waits that long.
    "UCX_RC_TIMEOUT": "20ms",
    "UCX_RC_RETRY_COUNT": "7",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_LEVEL": "error",
    "NIXL_LOG_LEVEL": "ERROR",
}


def configure_environment() -> dict[str, str]:
    """Set what UCX reads once, when NIXL is imported; what the user has set stays. The effective
    values."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return {name: os.environ[name] for name in ENVIRONMENT}


def installed_package() -> str | None:
    """The NIXL wheel that can be imported here, if any."""
    return next((name for name in _PACKAGES if importlib.util.find_spec(name)), None)


def nixl_memory(device: torch.device) -> tuple[str, int]:
    """NIXL's name of a device's memory, and the index of the device."""
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
    prepared: Any = field(default=None, repr=False)
    """NIXL's list of every unit of the peer's arena; None without a grain."""
    open: bool = True

    @property
    def remote_size(self) -> int:
        return self.size


@dataclass(eq=False)
class _NixlTransfer(Transfer):
    handle: Any = field(repr=False)
    """None: a notification alone, which is done when it was sent."""


class NixlTransport(Transport):
    """memory: NIXL's name of the arena's memory, DRAM or VRAM; device: the GPU's index, 0 for
    DRAM."""

    def __init__(self, name: str, memory: str = "DRAM", device: int = 0) -> None:
        """Raises TransportError when NIXL is not installed or its UCX cannot start."""
        configure_environment()
        package = installed_package()
        if package is None:
            raise TransportError("NIXL is not installed: pip install nixl-cu13 (or nixl-cu12)")
        api = importlib.import_module(f"{package}._api")
        self._memory = memory
        self._device = device
        self._lock = threading.Lock()
        self._region: Region | None = None
        self._registration: Any = None
        self._grain: Grain | None = None
        self._prepared: Any = None
        self._endpoints: list[_NixlEndpoint] = []
        self._transfers: set[_NixlTransfer] = set()
        # Agents of one name on two hosts or of two lives of one node must not be mistaken for each
        # other.
        agent_name = f"{name}-{uuid.uuid4().hex}"
        before = listening_ports()
        try:
            # NIXL's own progress thread spins: it takes most of a core of an idle daemon. Without
            # it UCX moves in poll() and notifications(), which sender and receiver call anyway.
            config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
            self._agent: Any = api.nixl_agent(agent_name, config)
        except Exception as error:
            raise TransportError(
                f"NIXL could not start ({error}); UCX_TLS is {os.environ['UCX_TLS']}"
            ) from error
        # NIXL has no call that ends what peers do to this agent.
        self._inbound = InboundSockets(before)

    @property
    def settle_seconds(self) -> float:
        """tests/test_settling.py measures it; what waits on this side is unread()'s."""
        return 0.1

    @property
    def retry_seconds(self) -> float:
        """Of RDMA; TCP repeats for minutes, which is what sever() ends."""
        return max(1.0, retry_bound(os.environ["UCX_RC_TIMEOUT"], os.environ["UCX_RC_RETRY_COUNT"]))

    def register(self, address: int, size: int, grain: Grain | None = None) -> Region:
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
            if grain is not None:
                self._grain = grain
                self._prepared = self._prepare(_OWN, address, size, self._device, self._memory)
        return self._region

    def _prepare(self, agent: str, address: int, size: int, device: int, memory: str) -> Any:
        """NIXL's list of all units of an arena, to be posted from by index. Raises
        TransportError."""
        assert self._grain is not None
        rows = [
            (address + strip.offset, strip.length, device, strip.stride, strip.count)
            for strip in self._grain.strips(size)
        ]
        try:
            return self._agent.prep_xfer_dlist(agent, np.array(rows, dtype=np.uint64), memory)
        except Exception as error:
            raise TransportError(f"NIXL could not prepare {size} bytes: {error}") from error

    def metadata(self) -> bytes:
        with self._lock:
            region = self._registered()
            description = {
                "address": region.address,
                "size": region.size,
                "device": self._device,
                "memory": self._memory,
                "ports": sorted(self._inbound.ports),
            }
            blob: bytes = self._agent.get_agent_metadata()
        return json.dumps(description).encode() + b"\n" + blob

    def connect(self, metadata: bytes) -> Endpoint:
        head, _, blob = metadata.partition(b"\n")
        try:
            description = json.loads(head)
            address, size = int(description["address"]), int(description["size"])
            device, memory = int(description["device"]), str(description["memory"])
            ports = [int(port) for port in description["ports"]]
        except (ValueError, KeyError, TypeError) as error:
            raise TransportError(f"the peer's NIXL metadata cannot be read: {error!r}") from error
        with self._lock:
            try:
                agent = self._agent.add_remote_agent(blob)
            except Exception as error:
                raise TransportError(f"NIXL could not add the peer: {error}") from error
            agent = agent.decode() if isinstance(agent, bytes) else str(agent)
            endpoint = _NixlEndpoint(agent, address, size, device, memory)
            if self._grain is not None:
                endpoint.prepared = self._prepare(agent, address, size, device, memory)
            self._endpoints.append(endpoint)
        self._inbound.add_peer(ports)
        return endpoint

    def post(
        self,
        endpoint: Endpoint,
        pieces: Pieces,
        notification: bytes,
    ) -> Transfer:
        assert isinstance(endpoint, _NixlEndpoint)
        with self._lock:
            region = self._registered()
            check_bounds(pieces, region.size, endpoint.size)
            if not endpoint.open:
                raise TransportError(f"NIXL: the connection to {endpoint.agent} is closed")
            try:
                handle = self._start(region, endpoint, pieces, notification)
            except TransportError:
                raise
            except Exception as error:
                raise TransportError(f"NIXL could not post to {endpoint.agent}: {error}") from error
            transfer = _NixlTransfer(handle)
            self._transfers.add(transfer)
        return transfer

    def _start(
        self, region: Region, endpoint: _NixlEndpoint, pieces: Pieces, notification: bytes
    ) -> Any:
        if len(pieces) == 0:
            self._agent.send_notif(endpoint.agent, notification)
            return None
        handle = self._by_index(region, endpoint, pieces, notification)
        if handle is None:
            local = self._descriptors(region.address, pieces[:, 0], pieces[:, 2], self._device)
            remote = self._descriptors(
                endpoint.address, pieces[:, 1], pieces[:, 2], endpoint.device
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
        self, region: Region, endpoint: _NixlEndpoint, pieces: Pieces, notification: bytes
    ) -> Any:
        """A transfer out of what was prepared; None where the pieces are no units of the grain."""
        if self._grain is None or endpoint.prepared is None:
            return None
        indices = self._grain.indices(pieces, region.size, endpoint.size)
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
            # Still under way and not to be cancelled: kept, and tried again on close.
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
