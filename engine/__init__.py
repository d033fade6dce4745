"""The step loop of every daemon: schedule, run, commit."""
