"""Which prefill node a prompt goes to: the index of who holds what, and the choice."""
