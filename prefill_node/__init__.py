"""Daemon of a prefill node: it computes a prompt's prefix and hands it to a decode node."""
