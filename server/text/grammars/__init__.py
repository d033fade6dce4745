"""What a client wants an answer to follow, as a grammar over its text."""
