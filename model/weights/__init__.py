"""A model's weights in memory, and the sources to read them from."""
