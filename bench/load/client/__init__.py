"""The clients of a serving bench: their requests, protocols and processes."""
