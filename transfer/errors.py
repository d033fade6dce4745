"""What can go wrong in a hand-over, as types. Each names what failed, where, and the mend."""


class TransferError(Exception):
    """Base of every error that transfer raises on purpose."""


class TransportError(TransferError):
    """A transport refused or lost a transfer, an endpoint or a registration."""


class PeerSilent(TransferError):
    """A peer said nothing for too long, while this node was awake to hear it."""


class OutOfBounds(TransferError):
    """An index or an offset lies outside the memory that its owner registered."""


class WindowPlanError(TransferError):
    """A forward's plan does not continue the room's previous one or leaves what was granted."""


class WindowsMissing(TransferError):
    """A hand-over said Done, and windows of it have not landed."""


class DigestMismatch(TransferError):
    """Bytes that landed are not the bytes that were sent."""


class PeerUnknown(TransferError):
    """No connection of that name; connect first."""


class DuplicateRoom(TransferError):
    """The room is alive already."""


class PeerInvalid(TransferError):
    """A peer sent what no node of this version sends."""


class MetadataUnusable(TransportError):
    """A peer's transport metadata are damaged, or harm whoever uses them."""
