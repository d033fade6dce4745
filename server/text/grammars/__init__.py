"""Grammars for an answer's text, made from a client's request."""
