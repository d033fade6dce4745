"""The n-gram table: rows by hash, and the layer that adds them to the streams."""
