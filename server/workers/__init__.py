"""Front workers: several processes for callers, and the node's one registry."""
