"""What a node's front watches beside its requests."""
