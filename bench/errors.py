"""What stops a bench, with the mend."""


class BenchError(Exception):
    """A measurement that cannot be made; the message names it and what to change."""
