"""`tasuki dashboard`: asks nodes how they are, and serves one page of them all."""
