"""Typed options, from a file and from the command line."""
