"""Links (hand-over connections) from prefill to decode nodes: the links of one decode node, and all
as a matrix. Pure.

Only decode nodes are read. Each counts its hand-overs by the prefill node's own name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tasuki.dashboard.health import CONNECTED

from .samples import LINK_BYTES, LINK_EXPOSED, LINK_HANDOVERS, LINK_STATE, RecentSamples, Samples

MOST_LINES = 24
"""Largest number of rows and of columns shown. A larger matrix cannot be read."""

_PEER = "peer"


@dataclass(frozen=True)
class Link:
    """State and traffic of one link from a prefill to a decode node. state: state reported by the
    decode node; empty if it no longer lists the peer. bytes_rate: bytes a second. exposed_seconds:
    mean transfer time after the prefill forward's end, of the recent hand-overs; None without
    any."""

    state: str
    handovers: float = 0.0
    bytes_rate: float = 0.0
    exposed_seconds: float | None = None

    @property
    def is_lost(self) -> bool:
        return self.state not in ("", CONNECTED)


@dataclass(frozen=True)
class LinkedNode:
    """A decode node with its links. links: links by the prefill node's name."""

    address: str
    name: str
    links: Mapping[str, Link]


def links_of(recent: RecentSamples) -> dict[str, Link]:
    """Return a decode node's links by the prefill node's name."""
    states = {
        named.get(_PEER, ""): named.get("state", "")
        for named in map(dict, recent.latest.get(LINK_STATE, {}))
    }
    gained = recent.gained
    if gained is None:
        return {peer: Link(state) for peer, state in states.items()}
    handovers = _by_peer(gained.added, LINK_HANDOVERS)
    exposed = _by_peer(gained.added, LINK_EXPOSED)
    brought = _by_peer(gained.added, LINK_BYTES)
    found = {}
    for peer in (*states, *(peer for peer in handovers if peer not in states)):
        count = handovers.get(peer, 0.0)
        mean = exposed.get(peer, 0.0) / count if count else None
        rate = brought.get(peer, 0.0) / gained.seconds
        found[peer] = Link(states.get(peer, ""), count, rate, mean)
    return found


def matrix(nodes: Iterable[LinkedNode], wanted: str) -> dict[str, Any]:
    """Return the links as JSON. wanted: lower-case text in a node's name or a decode node's
    address; empty: all. At most MOST_LINES rows and columns are shown. The nodes with the most lost
    links come first, then those with the most traffic."""
    shown = [(node, _matching(node, wanted)) for node in nodes]
    shown = [(node, links) for node, links in shown if links]
    senders: dict[str, tuple[int, float]] = {}
    takers: dict[str, tuple[int, float]] = {}
    for node, links in shown:
        whole = (0, 0.0)
        for peer, link in links.items():
            lost, carried = senders.get(peer, (0, 0.0))
            senders[peer] = (lost + link.is_lost, carried + link.bytes_rate)
            whole = (whole[0] + link.is_lost, whole[1] + link.bytes_rate)
        takers[node.address] = whole
    rows, columns = _heaviest(senders), _heaviest(takers)
    by_address = {node.address: (node, links) for node, links in shown}
    return {
        "prefill_nodes": len(senders),
        "decode_nodes": len(takers),
        "links": sum(len(links) for _, links in shown),
        "lost": sum(lost for lost, _ in takers.values()),
        "rows": rows,
        "columns": [
            {"address": address, "name": by_address[address][0].name} for address in columns
        ],
        "cells": [
            {
                "row": peer,
                "column": address,
                "state": known.state,
                "bytes_rate": known.bytes_rate,
                "exposed_seconds": known.exposed_seconds,
            }
            for address in columns
            for peer in rows
            if (known := by_address[address][1].get(peer)) is not None
        ],
    }


def _matching(node: LinkedNode, wanted: str) -> Mapping[str, Link]:
    if not wanted or wanted in node.name.lower() or wanted in node.address.lower():
        return node.links
    return {peer: link for peer, link in node.links.items() if wanted in peer.lower()}


def _heaviest(weights: Mapping[str, tuple[int, float]]) -> list[str]:
    """Return at most MOST_LINES nodes to show: first those with the most lost links, then those
    with the most traffic. weights: by node, the number of lost links and the traffic."""
    order = sorted(weights, key=lambda end: (-weights[end][0], -weights[end][1], end))
    return order[:MOST_LINES]


def _by_peer(samples: Samples, name: str) -> dict[str, float]:
    return {dict(labels).get(_PEER, ""): value for labels, value in samples.get(name, {}).items()}
