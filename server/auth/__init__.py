"""Callers, the scopes of their API keys, and the limits on their use."""
