"""Encoding of rows in fewer bits on the wire than in the arena."""
