"""Fetching of pictures by address, from listed hosts only, in a process of its own."""
