"""The checks, a noun a file: each asks, and raises Departure or Unserved, or returns."""
