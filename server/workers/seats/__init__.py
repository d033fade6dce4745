"""The registry's side of each front worker: its asks, and the objects that they hold."""
