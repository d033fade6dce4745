"""The error of a disk."""


class DiskFailed(OSError):
    """The disk did not do what it was asked; what it was asked for is computed instead."""
