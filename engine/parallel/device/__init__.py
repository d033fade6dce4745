"""What ranks exchange where each has a GPU of its own: through memory that all of them write to."""
