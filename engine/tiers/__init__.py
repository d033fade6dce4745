"""Memory tiers below the arena: threads to copy between them, and rules for beginning and
acknowledging a copy."""
