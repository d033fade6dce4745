"""Drafts (guesses) of answers' next tokens: their sources and their acceptance."""
