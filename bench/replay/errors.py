"""The error of a replay; it names the file and the mend."""


class ReplayError(ValueError):
    """A trace that cannot be replayed."""
