"""The engine sides of a hand-over and of a pull."""
