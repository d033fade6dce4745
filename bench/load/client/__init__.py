"""The clients of a bench: their requests, protocols and processes."""
