"""Drafts of answers' next tokens: where they come from, and how many of them held."""
