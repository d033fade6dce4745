"""The error of a remote store."""


class RemoteFailed(OSError):
    """The store did not do what it was asked; what it was asked for is computed instead."""
