"""The engine's part of hand-overs (prefill node to decode node) and pulls (decode node to prefill
node)."""
