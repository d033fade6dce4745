"""Sessions' logs."""
