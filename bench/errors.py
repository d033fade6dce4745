"""The errors of a bench and of a trace replay."""


class BenchError(Exception):
    """A measurement is impossible; the message names the reason and the fix."""


class ReplayError(ValueError):
    """A trace cannot be replayed; the message names the file and the fix."""
