"""Receiving side of a transfer."""
