"""Weights that change while a node serves: pauses, staging, the commit between two steps."""
