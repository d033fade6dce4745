"""Namespaces of weights: the tree's salts for states of the weights in use.

A prompt has a client's salt everywhere: in messages, on the wire, in a store. The tree alone adds
the weights to it, because it holds states of several weights at a time:

    weights of the start    the client's salt unchanged
    updated weights         MARK + SHA-256 of their tensors + the client's salt

Pure. Invariants: two different pairs of weights and salt have two different salts in the tree. So a
prompt never finds states of other weights, and an update needs no flush. No client's salt begins
with MARK (server/auth/tenants.py), and no peer's (engine/messages/transfer_proto.py).
"""

from dataclasses import dataclass

MARK = b"\0tasuki weights\0"
_DIGEST_BYTES = 32
PREFIX_BYTES = len(MARK) + _DIGEST_BYTES
"""Bytes in front of a client's salt, for updated weights."""


@dataclass(frozen=True)
class WeightsNamespace:
    """The salts of one set of weights. prefix: their beginning; empty for the start's weights."""

    prefix: bytes = b""

    @staticmethod
    def of(tensors_digest: str) -> "WeightsNamespace":
        """Return the namespace of updated weights. tensors_digest: hex SHA-256 of their tensors."""
        digest = bytes.fromhex(tensors_digest)
        assert len(digest) == _DIGEST_BYTES
        return WeightsNamespace(MARK + digest)

    def salted(self, salt: bytes) -> bytes:
        """Return the tree's salt of a client's salt."""
        return self.prefix + salt

    def client_salt(self, salted: bytes) -> bytes | None:
        """Return the client's salt of a tree's salt; None if its states are of other weights."""
        if not self.prefix:
            return None if names_weights(salted) else salted
        return salted[len(self.prefix) :] if salted.startswith(self.prefix) else None


START = WeightsNamespace()
"""The namespace of a node's first weights."""


def names_weights(salt: bytes) -> bool:
    """Return True if the salt begins as a tree's salt of updated weights does."""
    return salt.startswith(MARK)
