"""The side that is written into."""
