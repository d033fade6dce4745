"""What benches have of ranks: engines of several, and what they exchange alone."""
