"""Rendezvous hashing: where a key belongs while nothing better is known.

Pure. A node that goes moves its own keys and no others (Thaler and Ravishankar, 1998).
"""

from collections.abc import Iterable
from hashlib import blake2b


def rendezvous(key: bytes, nodes: Iterable[str]) -> str:
    """The node of the key. REQUIRES: there is a node."""
    return max(nodes, key=lambda node: (_weight(key, node), node))


def _weight(key: bytes, node: str) -> bytes:
    return blake2b(
        key, digest_size=16, person=blake2b(node.encode(), digest_size=16).digest()
    ).digest()
