"""What is computed of a prompt while what stands before it is loaded from below the arena."""
