"""The life of a prefill node."""
