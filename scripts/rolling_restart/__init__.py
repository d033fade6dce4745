"""A test of nodes restarted in turn behind a reverse proxy, under load."""
