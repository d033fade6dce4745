"""The planner against a day of simulated requests, beside an oracle that knows the day."""
