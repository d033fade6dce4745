"""The engine's side of hand-overs and pulls."""
