"""Callers, the scopes of their keys, and the limits on their use."""
