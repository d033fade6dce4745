"""What a node knows of itself without its engine."""
