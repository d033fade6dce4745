"""What operators see: the table of a session, from the same numbers that clients are told."""
