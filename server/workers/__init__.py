"""Front workers: several processes for a node's callers, and the node's one registry for their
shared state."""
