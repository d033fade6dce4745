"""A model's weights: their types, and where they are read from."""
