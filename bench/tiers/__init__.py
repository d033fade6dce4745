"""Sessions that return from below the arena, and copies beside steps."""
