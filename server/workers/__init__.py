"""Front workers: several processes that answer callers, and the node's one registry."""
