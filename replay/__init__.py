"""Traces of real traffic through the real tree: `tasuki replay-trace`."""
