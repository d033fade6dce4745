"""The error that stops a bench."""


class BenchError(Exception):
    """A measurement that cannot be made; the message names it and what to change."""
