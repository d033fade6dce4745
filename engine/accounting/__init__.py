"""What an engine counts, and what its memory holds."""
