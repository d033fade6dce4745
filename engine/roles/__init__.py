"""The handling of requests by an engine of any role, without the hand-over."""
