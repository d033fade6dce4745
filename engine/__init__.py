"""The engine: the step loop of every daemon. A step schedules a forward, runs it and commits its
tokens."""
