"""A node's history in a file: commands to record, replay and export it."""
