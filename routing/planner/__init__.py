"""Planner of a fleet: the number of nodes of each role, as pure functions of recent
observations."""
