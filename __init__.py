"""tasuki: a hybrid prefix cache with hand-overs from prefill nodes to decode nodes."""

__version__ = "0.1.0"
