"""Nodes restarted in turn behind a reverse proxy, under load."""
