"""The planner of `tasuki ray --plan`: it observes its nodes and changes their number and roles."""
