"""The error of a replay; it names the file and the mend."""


class ReplayError(ValueError):
    """A trace, model or policy that cannot be replayed."""
