"""Errors of a hand-over, as types. Each names the failed thing, its place and the fix."""


class TransferError(Exception):
    """Base of every error raised on purpose by the transfer package."""


class TransportError(TransferError):
    """A transport rejected or lost a transfer, an endpoint or a registration."""


class PeerTimedOut(TransferError):
    """A peer sent nothing for too long, while this node was running to receive it."""


class OutOfBounds(TransferError):
    """An index or an offset is outside the memory registered by its owner."""


class ChunkPlanError(TransferError):
    """A forward's plan does not continue the room's previous one, or leaves the granted ids."""


class ChunksMissing(TransferError):
    """A hand-over sent Done, but some of its layer chunks have not arrived."""


class DigestMismatch(TransferError):
    """Arrived bytes differ from the sent ones."""


class PeerUnknown(TransferError):
    """No connection has that name; connect first."""


class DuplicateTransfer(TransferError):
    """A room with this number is live already."""


class PeerInvalid(TransferError):
    """A peer sent a value that no node of this version sends."""


class MetadataUnusable(TransportError):
    """A peer's transport metadata are damaged, or would harm a process that used them."""
