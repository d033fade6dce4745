"""A tier in a file on a disk."""
