"""Grammars that answers must follow: what a request gives, compiled, and a token mask from it."""
