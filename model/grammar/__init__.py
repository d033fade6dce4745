"""Grammars for structured answers: a request's grammar source, its compiled form, and the mask of
allowed tokens."""
