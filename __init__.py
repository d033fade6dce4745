"""tasuki: a hybrid prefix cache with hand-overs from prefill nodes to decode nodes."""

__version__ = "0.2.0"
