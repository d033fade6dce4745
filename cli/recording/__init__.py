"""A node's history in a file: record, replay, export, chart."""
