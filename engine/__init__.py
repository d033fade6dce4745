"""The step loop that every daemon runs: schedule, run, commit."""
