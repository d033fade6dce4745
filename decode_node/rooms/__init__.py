"""Rooms into whose grants a prefill node writes."""
