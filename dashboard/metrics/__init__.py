"""Prometheus families, from what an engine reports."""
