"""External checks of any endpoint's answers against the APIs it serves."""
