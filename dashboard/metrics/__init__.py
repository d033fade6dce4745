"""Prometheus families made from an engine's reports."""
