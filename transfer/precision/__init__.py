"""Encoding of KV and state in fewer bits on the wire than in the arena."""
