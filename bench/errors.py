"""The errors that stop a bench and a replay."""


class BenchError(Exception):
    """A measurement that cannot be made; the message names it and what to change."""


class ReplayError(ValueError):
    """A trace that cannot be replayed; the message names the file and the mend."""
