"""What a replay refuses, in words that name the file and the mend."""


class ReplayError(ValueError):
    """A trace, model or policy that cannot be replayed."""
