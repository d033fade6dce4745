"""Metrics, a node's history and its dashboard page, all from the engine's messages."""
