"""Responses that are made whether or not a client waits for them."""
