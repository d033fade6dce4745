"""Rows with drafts through a GDN layer: outputs now, states once the number of accepted tokens is
known."""
