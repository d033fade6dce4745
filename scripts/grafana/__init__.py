"""Boards for Grafana, built by code so that every query in them can be tested."""
