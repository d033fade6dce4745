"""Forwards on a device."""
