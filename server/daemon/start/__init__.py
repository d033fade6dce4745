"""What a node says while it starts."""
