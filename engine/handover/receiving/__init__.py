"""Rooms in which a decode engine takes what a prefill engine computed."""
