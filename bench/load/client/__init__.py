"""The clients of a bench: what they ask, how, and in which processes."""
