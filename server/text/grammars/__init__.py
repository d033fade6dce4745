"""Grammars over an answer's text, as asked for by a client."""
