"""The number of nodes of each role for a fleet: pure functions of recent observations."""
