"""The side that writes."""
