"""Several ranks computing one model together: a leader with the engine, and its followers."""
