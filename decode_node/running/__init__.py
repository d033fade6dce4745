"""The life of a decode node."""
