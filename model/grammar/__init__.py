"""Grammars for answers: a request's source, its compiled form, and the token mask from it."""
