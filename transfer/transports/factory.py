"""Which transport a node has, by the name in its settings.

Only what is chosen is imported: peer_copy needs Triton, NIXL its wheel.
"""

import logging
from functools import partial

import torch

from tasuki.transfer.errors import TransportError
from tasuki.transfer.transports.nixl.transport import NixlTransport, nixl_memory
from tasuki.utils.signatures import Work

from .base import Transport
from .multi import RoutedTransport

log = logging.getLogger(__name__)


def build_transport(kind: str, name: str, device: torch.device) -> Transport:
    """kind: of TRANSPORTS, the same on both nodes of a pair. name: the node's. device: of the
    arena.

    auto takes peer_copy where both nodes are on one host and their GPUs reach each other, else
    nixl, peer by peer. Raises TransportError where the kind cannot work here.
    """
    builders: dict[str, Work[Transport]] = {
        "peer_copy": partial(_peer_copy, device),
        "nixl": lambda: NixlTransport(name, *nixl_memory(device)),
    }
    if kind in builders:
        return _expecting(builders[kind]())
    if device.type != "cuda":
        # It copies between GPUs: nothing that auto could lack.
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
    """A node's transport: its peers come soon, and weights are loaded meanwhile."""
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
