"""The tools of every bench: clocks, floors, host, report."""
