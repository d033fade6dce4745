"""`tasuki dashboard`: polls nodes for their state, and serves one page of them all."""
