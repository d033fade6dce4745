"""Metrics, a node's history and its page, all from the engine's messages."""
