"""Errors of a hand-over, as types. Each names the failed thing, its place and the fix."""


class TransferError(Exception):
    """Base of every error raised on purpose by the transfer package."""


class TransportError(TransferError):
    """A transport rejected or lost a transfer, an endpoint or a registration."""


class PeerTimedOut(TransferError):
    """No message of a peer came for longer than its timeout, while this node could receive one."""


class OutOfBounds(TransferError):
    """An index or an offset is outside the memory registered by its owner."""


class ChunkPlanError(TransferError):
    """A forward's plan does not continue the previous one, or has pages not granted."""


class ChunksMissing(TransferError):
    """A hand-over's sender reported its end, but some layer chunks have not arrived."""


class DigestMismatch(TransferError):
    """Arrived bytes differ from the sent ones."""


class PeerUnknown(TransferError):
    """No connection has the given peer name; connect first."""


class DuplicateTransfer(TransferError):
    """A live transfer has the same id."""


class PeerInvalid(TransferError):
    """A peer sent a value impossible for a node of this version."""


class MetadataUnusable(TransportError):
    """A peer's transport metadata are damaged, or would harm a process using them."""
