"""Proof that a writer writes no more."""
