"""Sparse attention: an index of blocks, their choice, and attention to the chosen ones."""
