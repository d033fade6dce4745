"""A model's weights: their types and their sources."""
