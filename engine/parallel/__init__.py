"""Several ranks that compute one model: a leader, which has the engine, and its followers."""
