"""Several ranks that compute one model: a leader with the engine, and its followers."""
