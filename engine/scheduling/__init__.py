"""Selection of the requests computed by the next forward, and of the places of its checkpoints."""
