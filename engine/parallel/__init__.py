"""Several ranks computing one model: a leader with the engine, and its followers."""
