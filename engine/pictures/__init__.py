"""Pictures inside an engine: their places in a prompt, their rows, their encodes."""
