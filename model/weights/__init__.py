"""A model's weights in memory, and the sources that they are read from."""
