"""What a node that ends does for others first."""
