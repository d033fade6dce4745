"""Names of request fields."""
