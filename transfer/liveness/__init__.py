"""Whether a peer is there, and moves."""
