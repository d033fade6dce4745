"""Bytes below the arena: who copies them, and when a copy may begin and is acknowledged."""
