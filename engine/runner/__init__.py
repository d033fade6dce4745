"""Runners: they execute planned forwards on a device."""
