"""An engine's handling of its requests, common to all roles, without the hand-over between
nodes."""
