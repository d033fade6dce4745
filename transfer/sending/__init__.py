"""Sending side of a transfer."""
