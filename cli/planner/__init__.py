"""A planner of nodes: observes, plans and acts on the nodes placed by `tasuki ray --plan`."""
